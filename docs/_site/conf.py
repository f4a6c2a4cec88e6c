"""Configuration of the documentation site; `build.py` prepares the pages and calls Sphinx."""

from __future__ import annotations

import sys
from pathlib import Path

import hopfy

sys.path.insert(0, str(Path(__file__).parent))

from figures import PairScraper, use_style

project = "hopfy"
author = "The hopfy developers"
project_copyright = "the hopfy developers"
version = release = hopfy.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "mathml",
    "cross_links",
]
root_doc = "index"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["generated/*.md"]
nitpicky = False
default_role = "py:obj"
suppress_warnings = [
    "config.cache",  # functions among the gallery's settings cannot be compared
    "ref.python",  # short names in annotations that more than one object has
]

myst_enable_extensions = ["amsmath", "attrs_block", "attrs_inline", "colon_fence", "dollarmath"]
myst_heading_anchors = 3

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 76
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"hopfy {release}"
html_static_path = ["static"]
templates_path = ["templates"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_last_updated_fmt = None
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "native"
copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def reset_style(_: object, __: str) -> None:
    """Before each example: the site's style and the same random numbers."""
    import torch

    use_style()
    torch.manual_seed(0)


# From retrieval over maps and layers to applications and scale.
EXAMPLES = [
    "denoise_digits.py",
    "energy_landscape.py",
    "temperature.py",
    "classic_to_modern.py",
    "two_at_once.py",
    "sparse_attention.py",
    "learnable_alpha.py",
    "chain_tagger.py",
    "soft_sorting.py",
    "own_structure.py",
    "mil_explained.py",
    "rationales.py",
    "larger_than_ram.py",
    "sharded_memory.py",
]


class InOrder:
    """Places the examples in the order of the list above."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, name: str) -> int:
        return EXAMPLES.index(name)


sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "examples",
    "filename_pattern": r"/[^_]\w*\.py$",
    "within_subsection_order": InOrder,
    "image_scrapers": (PairScraper(),),
    "reset_modules": (reset_style,),
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1e9,
    "write_computation_times": False,
    "download_all_examples": False,
    "abort_on_example_error": False,
    "only_warn_on_example_error": False,
    "copyfile_regex": r".*\.txt$",
    "reference_url": {},
    "notebook_extensions": (),
    "backreferences_dir": None,
    "capture_repr": ("_repr_html_",),
    "compress_images": (),
}
