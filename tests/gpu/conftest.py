"""Files under interpreted/ change what torch and Triton are, so only a process of their own reads them."""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("TRITON_INTERPRET") else ["interpreted"]
