"""Makes the description of the package from README.md, for scikit-build-core (`[tool.scikit-build.metadata.readme]`).

A package index shows this text beside no other file, so relative links lead nowhere. A link becomes its words, and an
image disappears.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WHERE = "\nThe pages that this text names are in the folder `docs` of the source package.\n"


def without_relative_links(text: str) -> str:
    """Returns Markdown without the links and images that only work in the repository. Code stays as it is."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    for number in range(0, len(parts), 2):
        part = re.sub(r"!\[[^\]]*\]\((?!https?://)[^)]*\)\n*", "", parts[number])
        parts[number] = re.sub(r"(?<!!)\[([^\]]*)\]\((?!https?://)[^)]*\)", r"\1", part)
    return "".join(parts)


def dynamic_metadata(field: str, settings: object = None, project: object = None) -> dict[str, str]:
    """Returns the field readme of the package's metadata."""
    assert field == "readme"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return {"content-type": "text/markdown", "text": without_relative_links(readme) + WHERE}
