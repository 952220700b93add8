"""The text of a GitHub issue by its address, through the public API."""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request

from xlocal.tracer.errors import UsageError

API = "https://api.github.com"
_ADDRESS = re.compile(r"https?://github\.com/([\w.-]+)/([\w.-]+)/(?:issues|pull)/(\d+)(?:[#?/].*)?$")
_SECONDS = 30
_LIMIT = 1 << 20  # bytes


def is_issue_address(text: str) -> bool:
    """Whether a text is an address rather than a file."""
    return text.startswith(("http://", "https://"))


def fetch_issue(address: str, *, api: str = API) -> str:
    """Title and text of an issue; GITHUB_TOKEN is used when it is set. Comments, often of later days, are left out.

    Raises UsageError when the address is of something else or the issue cannot be had.
    """
    match = _ADDRESS.match(address)
    if match is None:
        raise UsageError(
            f"{address}: is not the address of a GitHub issue (https://github.com/OWNER/NAME/issues/NUMBER)"
        )
    owner, name, number = match.groups()
    headers = {"Accept": "application/vnd.github+json", "User-Agent": "xlocal"}
    if token := os.environ.get("GITHUB_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(f"{api}/repos/{owner}/{name}/issues/{number}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            document = json.loads(answer.read(_LIMIT))
        title, body = str(document["title"]), str(document.get("body") or "")
    except urllib.error.HTTPError as error:
        more = "; too many requests without GITHUB_TOKEN" if error.code in (403, 429) else ""
        raise UsageError(f"{address}: cannot be had: the server says {error.code} {error.reason}{more}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{address}: cannot be had: {error}") from None
    return f"{title}\n\n{body}".rstrip() + "\n"
