"""Old addresses lead to the new ones, without a network."""

import pytest

from builder import redirects

STAYS = "<html><head><title>A title</title></head><body>Here</body></html>"


def test_old_addresses_lead_to_pages_that_are_there(tmp_path):
    """By relative links; a page that stays keeps its text, and a new page must be there."""
    pages, rows = tmp_path / "html", tmp_path / "redirects.csv"
    for name in ("theory/stays", "appendix/new", "start"):
        (pages / f"{name}.html").parent.mkdir(parents=True, exist_ok=True)
        (pages / f"{name}.html").write_text(STAYS)
    moved = "old,new\nexperiments/old,appendix/new\nexperiments/old#thm,theory/stays#thm\n"
    rows.write_text(f"{moved}theory/stays#part,appendix/new#part\n")
    redirects.write(redirects.read(rows), pages)
    redirects.ends(pages, "start", "")

    old = (pages / "experiments/old.html").read_text()
    assert "url=../appendix/new.html" in old and '"thm": "../theory/stays.html#thm"' in old
    assert "url=start.html" in (pages / "index.html").read_text()
    assert '<a href="start.html">' in (pages / "404.html").read_text()
    stays = (pages / "theory/stays.html").read_text()
    assert '{"part": "../appendix/new.html#part"}' in stays and "Here" in stays

    rows.write_text("old,new\nexperiments/old,appendix/newer\n")
    with pytest.raises(ValueError, match="to appendix/newer, which is no page of the book"):
        redirects.write(redirects.read(rows), pages)
