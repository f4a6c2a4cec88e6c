"""One page that shows what was run: pictures inside, nothing to load, light and dark."""

from hopfy.paper.report._page import Picture, Section, Table, page, section_of, write_page

__all__ = ["Picture", "Section", "Table", "page", "section_of", "write_page"]
