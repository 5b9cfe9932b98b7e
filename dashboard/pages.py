"""The dashboard's pages: path in the address, title, icon. The first one lies at `/`."""

from __future__ import annotations

PAGES: tuple[tuple[str, str, str], ...] = (
    ("overview", "Overview", ":material/monitoring:"),
    ("live", "Live and replay", ":material/play_circle:"),
    ("blocks", "Block map", ":material/grid_view:"),
    ("biography", "Block biography", ":material/history:"),
    ("requests", "Requests", ":material/view_timeline:"),
    ("waste", "Waste", ":material/data_usage:"),
    ("sharing", "Sharing", ":material/account_tree:"),
    ("events", "Events", ":material/list:"),
    ("findings", "Findings", ":material/bug_report:"),
    ("compare", "Compare", ":material/compare_arrows:"),
    ("whatif", "What if", ":material/tune:"),
    ("doctor", "Doctor", ":material/stethoscope:"),
    ("runs", "Property runs", ":material/science:"),
    ("overhead", "Recording overhead", ":material/speed:"),
)
PATHS = tuple(path for path, _, _ in PAGES)
TIMELESS = ("compare", "whatif", "doctor", "runs", "overhead")  # they speak of a whole run: no event is chosen there
