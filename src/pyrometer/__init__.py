"""What a training script may import. Nothing here is heavy: standard library only, no I/O on import."""

__version__ = "0.1.0"

__all__ = ["__version__"]
