"""Distributions: content of wheel and sdist, built by the backend's hooks; pipx installs one."""

from __future__ import annotations

import gzip
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from platform import python_version

import pytest
import yaml

from fastjournal import _native
from fastjournal.entry_points import EXTRAS
from tests.integration.programs import ended, installed
from tests.system.staging import make_environment

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"fastjournal", "fastjournald", "fj_forwarder", "fj_cli"}
PROGRAMS = ["fastjournald", "fj-cli", "fj-forwarder", "fj-nightly", "fj-worker"]
DATA = "fj_cli/data/page-changes.tsv.gz"
WHEEL_BYTES_MAX = 1_600_000
SHARED = {
    *(f"man/man{page[-1]}/{page}" for page in ("fj-cli.1", "fj-nightly.1", "fj-worker.1")),
    *(f"man/man{page[-1]}/{page}" for page in ("fastjournald.8", "fj-forwarder.8")),
    *("bash-completion/completions/fj-cli", "zsh/site-functions/_fj-cli"),
    "fish/vendor_completions.d/fj-cli.fish",
    *(f"fastjournal/monitoring/{path.name}" for path in (ROOT / "monitoring").iterdir()),
}
"""Files below share/ of an installation."""

DEADLINE_S = 60


MODULES = {
    f"fastjournal/_native/{name}{sysconfig.get_config_var('EXT_SUFFIX')}" for name in _native.NAMES
}
"""The native leaves of this interpreter."""

SOURCES: dict[str, tuple[str, ...]] = runpy.run_path(str(ROOT / "hatch_build.py"))["MODULES"]

NO_COMPILER = 69


def build(
    what: str, source: Path, target: Path, *, before: str = "", **environment: str
) -> tuple[Path, list[str]]:
    """Build into the directory target; return the file, and warnings about native leaves.

    Args:
        what: "wheel", "sdist" or "editable".
        source: The tree.
        target: It is made.
        before: Code that the interpreter runs first.
        environment: Variables beside those of this process.
    """
    target.mkdir()
    code = f"{before}\nimport hatchling.build, sys; hatchling.build.build_{what}(sys.argv[1])"
    own = {name: value for name, value in os.environ.items() if name != "FASTJOURNAL_NATIVE"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(target)],
        cwd=source,
        env=own | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (built,) = target.iterdir()
    return built, [line for line in done.stderr.splitlines() if "native" in line]


def contents(wheel: Path) -> dict[str, bytes]:
    """Every file of a wheel except the list of their hashes."""
    with zipfile.ZipFile(wheel) as archive:
        return {n: archive.read(n) for n in archive.namelist() if not n.endswith("/RECORD")}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, so that all builds see the same state of it."""
    ignore = shutil.ignore_patterns(*(".git", ".venv", "dist", "__pycache__", ".*_cache", "*.so"))
    return shutil.copytree(ROOT, tmp_path_factory.mktemp("tree") / "project", ignore=ignore)


@pytest.fixture(scope="module")
def sdist(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", tree, tmp_path_factory.mktemp("sdist") / "dist")[0]


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(directory, filter="data")
        else:
            # Python before 3.11.4, and the archive is our own
            archive.extractall(directory)
    (unpacked,) = directory.iterdir()
    return unpacked


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tree, tmp_path_factory.mktemp("wheel") / "dist")[0]


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip tests of native leaves where there is no compiler, or no header of Python."""
    command = [sys.executable, str(ROOT / "hatch_build.py"), str(tmp_path_factory.mktemp("native"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == NO_COMPILER:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Return an empty directory with a path that leaves room for that of a socket."""
    with tempfile.TemporaryDirectory(prefix="fj-") as path:
        yield Path(path)


def test_wheel_of_the_sdist_holds_the_same_files_as_the_wheel_of_the_tree(
    wheel: Path, unpacked: Path, tmp_path: Path
) -> None:
    assert contents(build("wheel", unpacked, tmp_path / "dist")[0]) == contents(wheel)


def test_wheel_holds_the_packages_and_nothing_beside_them(wheel: Path) -> None:
    names = contents(wheel).keys()
    tops = {name.split("/")[0] for name in names}
    data, info = sorted(tops - PACKAGES)

    assert data.endswith(".data")
    assert info.endswith(".dist-info")
    assert {name for name in names if name.startswith(data)} == {
        f"{data}/data/share/{name}" for name in SHARED
    }
    assert tops > PACKAGES
    assert f"{info}/licenses/LICENSE" in names
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert not [name for name in names if name.endswith(".pyc")]
    with zipfile.ZipFile(wheel) as archive:
        launcher = archive.getinfo("fastjournal/spark/cluster/launcher/bin/java")
    assert launcher.external_attr >> 16 & 0o111


def test_wheel_holds_every_file_of_its_packages(wheel: Path, tree: Path) -> None:
    roots = {"fastjournal": tree, "fastjournald": tree / "daemon"} | dict.fromkeys(
        ("fj_forwarder", "fj_cli"), tree / "client"
    )
    native = MODULES if "none-any" not in wheel.name else set[str]()
    expected = native | {
        str(path.relative_to(root))
        for package, root in roots.items()
        for path in (root / package).rglob("*")
        if path.is_file()
    }

    assert expected == {n for n in contents(wheel) if n.split("/")[0] in PACKAGES}


def test_sdist_and_wheel_carry_the_commit_of_their_checkout(tree: Path, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    directories = ("docs/man", "packaging/completions", "monitoring", "fastjournal/_native")
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", *directories):
        copy = shutil.copytree if (tree / name).is_dir() else shutil.copy
        (checkout / name).parent.mkdir(exist_ok=True)
        copy(tree / name, checkout / name)
    for package in ("fastjournal", "daemon/fastjournald", "client/fj_cli", "client/fj_forwarder"):
        (checkout / package).mkdir(parents=True, exist_ok=True)
    for name in ("__init__.py", "build_info.py"):
        shutil.copy(tree / "fastjournal" / name, checkout / "fastjournal" / name)

    def git(*words: str) -> str:
        identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
        command = ["git", *identity, *words]
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    commit = git("rev-parse", "--short=12", "HEAD")
    sdist, _ = build("sdist", checkout, tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        for name in archive.getnames():
            if name.endswith("/fastjournal/commit.txt"):
                file = archive.extractfile(name)
                assert file is not None
                assert file.read().decode() == f"{commit}\n"
                archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    (checkout / "README.md").write_text("changed\n", encoding="utf-8")
    for source, said in ((unpacked, commit), (checkout, f"{commit}-dirty")):
        wheel, _ = build("wheel", source, tmp_path / f"wheel-{said}")
        assert contents(wheel)["fastjournal/commit.txt"].decode() == f"{said}\n"


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_prints_its_version_with_the_commit(program: str) -> None:
    done = subprocess.run(
        [installed(program), "--version"], capture_output=True, text=True, check=True
    )
    # the checkout may change while the tests run
    commit = "[0-9a-f]{12}(-dirty)?" if (ROOT / ".git").exists() else "unknown"
    facts = f"commit COMMIT, Python {python_version()}, native leaves {_native.status}"
    versions = re.escape(f"{version('fastjournal')} ({facts})")
    expected = f"{program}, version {versions.replace('COMMIT', commit)}\n"
    assert re.fullmatch(expected, done.stdout)


def test_sdist_holds_what_building_testing_and_installing_need(unpacked: Path) -> None:
    for name in (
        *("Makefile", "constraints.txt", "hatch_build.py", ".ci/run", ".ci/tools", "docs", "tests"),
        *("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "examples/demo/page-changes.tsv.gz"),
        *("systemd/install", "packaging/debian/build", "packaging/Containerfile"),
        *(f"fastjournal/_native/{name}" for name in ("leaf.h", *chain(*SOURCES.values()))),
    ):
        assert (unpacked / name).exists(), name
    assert not list(unpacked.rglob("*.so"))
    for name in (".venv", "dist", ".git"):
        assert not (unpacked / name).exists(), name


@pytest.mark.usefixtures("compiler")
def test_wheel_with_native_leaves_has_both_modules_and_the_tag_of_its_interpreter(
    wheel: Path,
) -> None:
    """A wheel without them works as well, so nobody would see that they were left out."""
    assert {name for name in contents(wheel) if name.endswith(".so")} == MODULES
    version = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    machine = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert tags_of(wheel) == ("false", {f"{version}-{version}-{machine}"})
    assert f"-{version}-{version}-{machine}" in wheel.name


WITHOUT_HEADERS = """
import sysconfig
get_path = sysconfig.get_path
def get(name, *more): return "/nonexistent" if "include" in name else get_path(name, *more)
sysconfig.get_path = get
"""

FREE_THREADED = """
import sysconfig
get_var = sysconfig.get_config_var
sysconfig.get_config_var = lambda name: 1 if name == "Py_GIL_DISABLED" else get_var(name)
"""


@pytest.mark.parametrize(
    ("before", "variables", "reason"),
    [
        ("", {"CC": "/nonexistent/cc"}, "the compiler cannot be run"),
        ("", {"CC": "false"}, "false "),
        (WITHOUT_HEADERS, {}, "there is no /nonexistent/Python.h"),
        (FREE_THREADED, {}, "this is a free-threaded Python"),
        ("", {"FASTJOURNAL_NATIVE": "0"}, None),
    ],
)
def test_wheel_that_cannot_have_native_leaves_is_pure_and_says_so_once(
    tree: Path, tmp_path: Path, before: str, variables: dict[str, str], reason: str | None
) -> None:
    source = shutil.copytree(tree, tmp_path / "source")
    for name in MODULES:
        (source / name).write_bytes(b"left by another build")
    wheel, said = build("wheel", source, tmp_path / "dist", before=before, **variables)
    assert not [name for name in contents(wheel) if name.endswith(".so")]
    assert wheel.name.endswith("-py3-none-any.whl")
    assert tags_of(wheel) == ("true", {"py3-none-any"})
    if reason is None:
        assert said == []
    else:
        [warning] = said
        assert "no native leaves, and a pure wheel: " in warning
        assert reason in warning


@pytest.mark.usefixtures("compiler")
def test_install_of_a_checkout_compiles_native_leaves_beside_their_sources(
    tree: Path, tmp_path: Path
) -> None:
    source = shutil.copytree(tree, tmp_path / "source")
    wheel, said = build("editable", source, tmp_path / "dist")
    assert said == []
    assert not [name for name in contents(wheel) if name.endswith(".so")]
    built = {str(path.relative_to(source)) for path in source.rglob("*.so")}
    assert built == MODULES
    # make compiles again what is older than its sources, and only that
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    python = source / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    for name in (".ready", ".native"):
        (source / "venv" / name).touch()

    def made() -> bool:
        command = ["make", "venv/.native", "VENV=venv"]
        done = subprocess.run(
            command, cwd=source, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return "hatch_build.py" in done.stdout

    assert not made()
    with (source / "fastjournal/_native/leaf.h").open("a") as header:
        header.write("/* changed */\n")
    before = {name: (source / name).read_bytes() for name in MODULES}
    assert made()
    assert all((source / name).read_bytes() != before[name] for name in MODULES), "fingerprint"
    assert not made()


def tags_of(wheel: Path) -> tuple[str, set[str]]:
    """Return what a wheel says: whether it is pure, and for which interpreters it is."""
    (text,) = (text for name, text in contents(wheel).items() if name.endswith("/WHEEL"))
    fields = [line.split(": ") for line in text.decode().splitlines() if ": " in line]
    tags = {value for name, value in fields if name == "Tag"}
    return dict(fields)["Root-Is-Purelib"], tags


def test_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size <= WHEEL_BYTES_MAX


def test_wheel_says_that_it_is_typed_and_has_no_extra_for_development(wheel: Path) -> None:
    (metadata,) = (text for name, text in contents(wheel).items() if name.endswith("/METADATA"))
    assert b"\nClassifier: Typing :: Typed\n" in metadata
    extras = re.findall(r"\nProvides-Extra: (\w+)", metadata.decode())
    assert sorted(extras) == sorted([*EXTRAS, "all"])


def test_wheel_carries_the_change_events_of_the_demonstration(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from importlib.resources import files\n"
        "print(files('fj_cli').joinpath('data/page-changes.tsv.gz'))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )

    assert Path(found.stdout.strip()) == tmp_path / DATA
    with gzip.open(tmp_path / DATA, "rt", encoding="utf-8") as events:
        seconds, domain, kind, path = events.readline().rstrip("\n").split("\t")
    assert int(seconds) > 0
    assert "." in domain
    assert kind in {"A", "M", "D"}
    assert path


def test_install_pins_every_dependency_and_no_file_names_an_index() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    pinned = {normal(pin.split("==")[0]) for pin in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *(r for extra in EXTRAS for r in project["project"]["optional-dependencies"][extra]),
        *project["dependency-groups"]["dev"],
    ]

    assert {normal(re.split(r"[>=\[]", requirement)[0]) for requirement in wanted} <= pinned
    assert len(pinned) == len(pins)
    for pin in pins:
        name, version = pin.split("==")
        assert name.replace("-", "").replace("_", "").replace(".", "").isalnum(), pin
        assert version[0].isdigit(), pin
        assert "/" not in version, pin


def test_ci_file_of_the_forge_runs_the_script_on_each_supported_python() -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    job = yaml.safe_load(text)["jobs"]["test"]
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert os.access(ROOT / ".ci/run", os.X_OK)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    prefix = "Programming Language :: Python :: "
    versions = [name.removeprefix(prefix) for name in project["classifiers"] if prefix in name]
    supported = [v for v in versions if v[0] == "3" and "." in v]
    assert job["strategy"]["matrix"]["python"] == supported
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"\nPYTHONS ?= {' '.join(f'python{v}' for v in supported)}\n" in makefile


def normal(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return name.lower().replace("_", "-").replace(".", "-")


def test_wheel_installed_by_pipx_runs_all_programs(wheel: Path, short_path: Path) -> None:
    # the quick start of the documentation installs the dependencies from the index
    names = ("HOME", "BIN_DIR", "MAN_DIR", "SHARED_LIBS")
    places = {f"PIPX_{name}": str(short_path / name) for name in names}
    # all programs of pipx see the packages in there; otherwise it installs the newest pip
    make_environment(short_path / "SHARED_LIBS", "daemon", "cli", "forwarder")
    places["PIPX_DISABLE_SHARED_LIBS_AUTO_UPGRADE"] = "1"
    options = ["--python", sys.executable, "--pip-args=--no-deps --no-compile"]
    done = subprocess.run(
        [sys.executable, "-m", "pipx", "install", *options, str(wheel)],
        env={**os.environ, **places},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    programs = short_path / "BIN_DIR"
    assert sorted(path.name for path in programs.iterdir()) == PROGRAMS
    assert (short_path / "MAN_DIR/man8/fastjournald.8").is_file()
    address, ready, spool = f"unix:{short_path}/socket", short_path / "ready", short_path / "spool"
    own = {name: value for name, value in os.environ.items() if "FASTJOURNAL" not in name}

    def run(program: str, *words: str) -> str:
        done = subprocess.run(
            [programs / program, *words],
            env={**own, "FASTJOURNAL_SERVER": address},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    # the copy of the project that the wheel was built from is no checkout
    said = f"fj-nightly, version {version('fastjournal')} (commit unknown"
    assert run("fj-nightly", "--version").startswith(said)
    native = "not-built" if "none-any" in wheel.name else "on"
    assert run("fastjournald", "--version").endswith(f", native leaves {native})\n")
    options = (
        "--cmdlog-path",
        f"{short_path}/log",
        "--listen",
        address,
        "--ready-file",
        str(ready),
    )
    with ended(subprocess.Popen([programs / "fastjournald", *options])) as daemon:
        deadline = time.monotonic() + DEADLINE_S
        while not ready.exists():
            assert daemon.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        run("fj-cli", "set", "--domain", "pages", "--uri", "https://example.org/a", "changed")
        run("fj-cli", "spool", "put", str(spool), "--domain", "pages", "spooled")
        run("fj-forwarder", "--spool", str(spool), "--server", address, "--once")
        jobs = run("fj-cli", "next", "pages", "--count", "9").splitlines()
        assert [json.loads(job)["value"] for job in jobs] == ["changed", "spooled"]
        daemon.terminate()
        assert daemon.wait(DEADLINE_S) == 0
