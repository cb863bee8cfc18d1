"""Build, prove and serve a patched vLLM."""

__version__ = "0.1.0"
