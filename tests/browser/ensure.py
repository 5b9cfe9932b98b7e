"""Makes sure the browser tests have a Chromium: the system's, else Playwright's own, else Debian's package as root.

Prints one line with what it found or what is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    """The system's Chromium, or the one Playwright has installed; None if neither is there."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if path and os.path.exists(path) else None


def main() -> int:
    if find():
        return 0
    print("no Chromium found: trying Playwright's own ...", flush=True)
    subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=False, timeout=600)
    if not find() and os.geteuid() == 0 and shutil.which("apt-get"):
        print("trying the system's package ...", flush=True)
        quiet = {"stdout": subprocess.DEVNULL, "check": False, "timeout": 900}
        subprocess.run(["apt-get", "update", "-qq"], **quiet)  # type: ignore[call-overload]
        subprocess.run(["apt-get", "install", "-y", "-qq", "chromium"], **quiet)  # type: ignore[call-overload]
    if find():
        return 0
    print("no Chromium: the browser tests need one. As root: apt-get install chromium", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
