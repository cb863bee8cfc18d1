"""What Sphinx is told; `build.py` beside this file says which pages it gets."""

import importlib.metadata

project = "nvllm"
author = "the nvllm authors"
release = importlib.metadata.version("nvllm")

extensions = ["myst_parser"]
exclude_patterns = ["conf.py"]
myst_heading_anchors = 3
nitpicky = True
highlight_language = "none"  # a block without a language is a terminal or a drawing, not Python

html_theme = "furo"  # has its scripts and fonts in itself: a page asks no other host for anything
html_title = "nvllm"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_use_index = False
