"""What the dashboard shows, in order."""

from __future__ import annotations

from panels_flow import FLOW, GLANCE, RETRIES
from panels_rest import DEAD, PROCESS, PROVIDERS, SERVERS

ROWS = (GLANCE, FLOW, RETRIES, DEAD, PROVIDERS, SERVERS, PROCESS)
