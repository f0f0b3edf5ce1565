"""Build hook: writes the commit (fastjournal/commit.txt), compiles the native leaves.

An editable installation asks git for the commit each time (fastjournal/build_info.py), and has its
native leaves beside their sources, where ``make`` compiles them again by this file as a program:

    python hatch_build.py [DIRECTORY [OPTION OF THE COMPILER...]]

The compiler is the interpreter's own, with its options; CC, CPPFLAGS, CFLAGS, LDSHARED and LDFLAGS
change them as they do for setuptools. Without a compiler or Python's headers there are no leaves,
and the functions in Python do all. ``FASTJOURNAL_NATIVE=0`` asks for that: a pure wheel.
"""

from __future__ import annotations

import os
import runpy
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMMIT_FILE = "fastjournal/commit.txt"
NATIVE = "fastjournal/_native"
MODULES = {
    "_leaves": ("leaf.c", "codec.c", "records.c", "bulk.c", "replay.c"),
    "_rounds": ("rounds.c",),
}
OPTIONS = (
    *("-std=c11", "-O3", "-fno-strict-aliasing", "-fvisibility=hidden", "-Wall", "-Wextra"),
    *("-Wno-unused-parameter", "-Wno-missing-field-initializers"),
)


NO_COMPILER = 69
"""Exit code, EX_UNAVAILABLE: ``make`` goes on without leaves."""


class CompilerError(Exception):
    """The compiler failed; it has said why."""


class NoCompilerError(CompilerError):
    """There is no compiler, or no header of Python: no fault of the sources."""


class BuildHook(BuildHookInterface[Any]):
    """Adds the commit of the tree, and the native leaves where they can be compiled.

    A source distribution has the commit of its own; a tree without git has none.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files before the archive is written.

        Args:
            version: Kind of build: ``standard`` or ``editable``.
            build_data: Files to add, by path, under ``force_include``.
        """
        self._directory = tempfile.TemporaryDirectory()
        directory = Path(self._directory.name)
        if self.target_name == "wheel" and os.environ.get("FASTJOURNAL_NATIVE") != "0":
            self._add_native(version, directory, build_data)
        if version == "editable" or (Path(self.root) / COMMIT_FILE).exists():
            return
        commit = commit_of(self.root)
        if commit is None:
            self.app.display_warning("no commit is known: this is no git checkout")
            return
        file = directory / "commit.txt"
        file.write_text(f"{commit}\n", encoding="ascii")
        build_data["force_include"][str(file)] = COMMIT_FILE

    def _add_native(self, version: str, directory: Path, build_data: dict[str, Any]) -> None:
        sources = Path(self.root) / NATIVE
        editable = version == "editable"
        try:
            # no debugging information, which names the directory of the build
            files = compile_native(
                sources, sources if editable else directory, *(() if editable else ("-g0",))
            )
        except CompilerError as error:
            self.app.display_warning(f"no native leaves, and a pure wheel: {error}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if not editable:
            build_data["force_include"] |= {str(file): f"{NATIVE}/{file.name}" for file in files}


def compile_native(sources: Path, directory: Path, *options: str) -> list[Path]:
    """Compile the native leaves by the settings of this interpreter; return the modules.

    Args:
        sources: Directory of the C sources.
        directory: Where the modules go. Each is written whole: processes may run those before.
        options: More options of the compiler, also for linking.

    Raises:
        NoCompilerError: There is no compiler, no header, or no GIL.
        CompilerError: It fails.
    """
    include = sysconfig.get_path("include")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise NoCompilerError("they need the GIL, and this is a free-threaded Python")
    if not (Path(include) / "Python.h").exists():
        raise NoCompilerError(f"there is no {include}/Python.h (package python3-dev, say)")
    compiler, linker = commands()
    # the loader compares it with the sources that lie beside the modules
    known = runpy.run_path(str(sources / "__init__.py"), init_globals={"__path__": []})
    build = known["fingerprint"](sources)
    headers = {include, sysconfig.get_path("platinclude")}
    files = []
    with tempfile.TemporaryDirectory(dir=directory, prefix="build-") as place:
        for name, parts in MODULES.items():
            objects = [f"{Path(place, part).with_suffix('.o')}" for part in parts]
            for part, output in zip(parts, objects, strict=True):
                given = (*OPTIONS, f'-DFJ_NATIVE_BUILD="{build}"', *options)
                paths = (f"-I{path}" for path in sorted(headers))
                run(compiler, *given, *paths, "-c", part, "-o", output, directory=sources)
            file = f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
            run(linker, *objects, *options, "-o", str(Path(place, file)), directory=sources)
            files.append(Path(place, file).replace(directory / file))
    return files


def commands() -> tuple[list[str], list[str]]:
    """Return the begin of the command that compiles, and of the one that links."""
    words = {
        name: shlex.split(sysconfig.get_config_var(name) or "")
        for name in ("CC", "CFLAGS", "CCSHARED", "LDSHARED")
    }
    given = {
        name: shlex.split(os.environ.get(name, ""))
        for name in ("CC", "CPPFLAGS", "CFLAGS", "LDSHARED", "LDFLAGS")
    }
    compiler = given["CC"] or words["CC"]
    linker = words["LDSHARED"]
    if linker[: len(words["CC"])] == words["CC"]:
        linker = compiler + linker[len(words["CC"]) :]
    return (
        [*compiler, *words["CFLAGS"], *given["CPPFLAGS"], *given["CFLAGS"], *words["CCSHARED"]],
        [*(given["LDSHARED"] or linker), *given["CFLAGS"], *given["LDFLAGS"]],
    )


def run(command: list[str], *words: str, directory: Path) -> None:
    """Run a compiler; what it says is in the error."""
    try:
        done = subprocess.run(
            [*command, *words], cwd=directory, capture_output=True, text=True, check=False
        )
    except (OSError, IndexError) as error:
        raise NoCompilerError(f"the compiler cannot be run: {error}") from None
    if done.returncode != 0:
        raise CompilerError(f"{shlex.join([*command, *words])}\n{done.stderr}")
    sys.stderr.write(done.stderr)


def commit_of(directory: str) -> str | None:
    """Return the commit of a checkout, with ``-dirty`` behind it where files differ."""
    if not (Path(directory) / ".git").exists():
        return None
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or None


def main(directory: str = "", *options: str) -> None:
    """Compile the native leaves of this checkout."""
    sources = Path(__file__).parent / NATIVE
    place = Path(directory) if directory else sources
    place.mkdir(parents=True, exist_ok=True)
    try:
        files = compile_native(sources, place.absolute(), *options)
    except CompilerError as error:
        print(f"no native leaves: {error}", file=sys.stderr)
        sys.exit(NO_COMPILER if isinstance(error, NoCompilerError) else 1)
    print(*files, sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
