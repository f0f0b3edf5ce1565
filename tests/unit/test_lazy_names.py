"""Lazy names of a package: the object of the first access stays the object of all later ones."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import fastjournal
import fastjournal.client
import fastjournal.spark
import fastjournald
import fj_cli
import fj_forwarder

PACKAGES = {"fastjournal": fastjournal, "client": fastjournal.client, "spark": fastjournal.spark}


@pytest.mark.parametrize("name", PACKAGES)
def test_import_of_an_exported_name_is_never_a_submodule(name: str) -> None:
    package = PACKAGES[name]
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert not modules & set(package.__all__)


def test_import_of_each_module_exports_a_name_once() -> None:
    for package in (fastjournal, fastjournald, fj_cli, fj_forwarder):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                exported = getattr(importlib.import_module(module.name), "__all__", ())
                assert len(exported) == len(set(exported)), module.name


def test_functions_of_spark_stay_functions_after_their_modules_are_loaded() -> None:
    program = """
import fastjournal.spark
for name in fastjournal.spark.__all__ * 2:
    assert callable(getattr(fastjournal.spark, name)), name
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
