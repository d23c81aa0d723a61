"""``python -m tools.docs`` writes the generated parts of the docs anew (``make reference``)."""

from tools.docs.reference import ROOT, renewed

for page, text in renewed().items():
    (ROOT / page).write_text(text, encoding="utf-8")
    print(f"{page} is renewed")
