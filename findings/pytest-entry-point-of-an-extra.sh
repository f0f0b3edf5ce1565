#!/usr/bin/env bash
# pytest loads a plugin whose entry point belongs to an extra that is not installed, and a plugin that
# imports the dependency of that extra then ends every run of pytest in the environment.
#
# Version: pytest 9.1.1, pluggy 1.7.0, Python 3.11.
# Behaviour: an entry point may name extras, `plugin = module [test]`: it is for an installation that
#   has the extra (the specification of entry points calls that discouraged for consumers). pluggy
#   loads all entry points of the group pytest11 and looks at no extras. A distribution that has its
#   plugin in an extra has to import the dependencies of that lazily.
# Output seen:
#   the module of the extra is there: False
#   plugin that imports it lazily: loaded, 1 passed
#   plugin that imports it at once: ModuleNotFoundError: No module named 'of_the_extra', exit code 1
# Needs: bash, python3 with venv, pip. Fails if the output differs.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check pytest==9.1.1 pluggy==1.7.0 2>pip.err || {
	cat pip.err >&2
	exit 1
}
packages=$(venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir "$packages/has_plugin-1.dist-info"
cat >"$packages/has_plugin-1.dist-info/METADATA" <<'END'
Metadata-Version: 2.1
Name: has-plugin
Version: 1
Provides-Extra: test
Requires-Dist: of-the-extra; extra == "test"
END
printf '[pytest11]\nhas_plugin = has_plugin [test]\n' >"$packages/has_plugin-1.dist-info/entry_points.txt"
echo 'def test_own(): pass' >test_own.py
{
	echo "the module of the extra is there: $(venv/bin/python -c \
		'from importlib.util import find_spec; print(find_spec("of_the_extra") is not None)')"
	echo 'print("loaded", end=", ")' >"$packages/has_plugin.py"
	echo "plugin that imports it lazily: $(venv/bin/python -m pytest -q -p no:cacheprovider |
		sed -n 's/^loaded, .*/loaded/p; s/^\(1 passed\).*/, \1/p' | tr -d '\n')"
	echo 'import of_the_extra' >"$packages/has_plugin.py"
	status=0
	said=$(venv/bin/python -m pytest -q -p no:cacheprovider 2>&1) || status=$?
	echo "plugin that imports it at once: $(echo "$said" | tail -1), exit code $status"
} | tee output
diff output - <<'EXPECTED'
the module of the extra is there: False
plugin that imports it lazily: loaded, 1 passed
plugin that imports it at once: ModuleNotFoundError: No module named 'of_the_extra', exit code 1
EXPECTED
