"""Audit of the pinned versions: known vulnerabilities, by pip-audit. ``make audit`` runs it.

Exit codes: 0 each version was audited and none is known to be vulnerable, 1 vulnerable versions,
69 the service of vulnerabilities cannot be reached, or knows nothing of a version: not audited.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
EXIT_VULNERABLE = 1
EXIT_NOT_AUDITED = 69


def main(arguments: list[str]) -> int:
    """Run pip-audit with further arguments, and say what it found.

    pip-audit takes a version that the service does not know for one that is not vulnerable, and
    an index without the service knows none.
    """
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(CONSTRAINTS)]
    options = ["--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(
        [*command, *options, *arguments], capture_output=True, text=True, check=False
    )
    try:
        dependencies = json.loads(done.stdout)["dependencies"]
    except ValueError:
        lines = done.stderr.strip().splitlines()
        print(f"not audited: pip-audit failed: {lines[-1] if lines else done.returncode}")
        return EXIT_NOT_AUDITED
    return report(dependencies)


def report(dependencies: list[dict[str, Any]]) -> int:
    """Print what pip-audit says of each version, and return the exit code."""
    skipped = [each["name"] for each in dependencies if "skip_reason" in each]
    vulnerable = 0
    for each in dependencies:
        for found in each.get("vulns", ()):
            vulnerable += 1
            fixed = ", ".join(found["fix_versions"]) or "no version"
            print(f"{each['name']} {each['version']}: {found['id']}, fixed in {fixed}")
    print(f"audited {len(dependencies) - len(skipped)} of {len(dependencies)} versions")
    if vulnerable:
        return EXIT_VULNERABLE
    if len(skipped) == len(dependencies):
        print("not audited: the service of vulnerabilities cannot be reached from here")
        return EXIT_NOT_AUDITED
    if skipped:
        print(f"not audited: nothing is known of {', '.join(skipped)}")
        return EXIT_NOT_AUDITED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
