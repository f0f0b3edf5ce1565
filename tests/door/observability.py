"""Parts of ``fastjournald.observability`` that tests use."""

from __future__ import annotations

from fastjournald.observability.http_app import PageRequest, PageResponse, answer
from fastjournald.observability.http_routes import pages_of
from fastjournald.observability.http_server import HttpServer
from fastjournald.observability.metric_values import histogram
from fastjournald.observability.metrics import Metrics
from fastjournald.observability.page_figures import Overview
from fastjournald.observability.page_text import duration, shown
from fastjournald.observability.shared_totals import PART_MAX, SharedTotals
from fastjournald.observability.time_slices import TimeSlices
