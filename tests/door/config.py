"""Parts of ``fastjournald.config`` that tests use."""

from __future__ import annotations

from fastjournald.config.addresses import parse_place
from fastjournald.config.command_line import UNITS
from fastjournald.config.load import load_config
from fastjournald.config.options import PROGRAM_BYTES, Config
