"""What your secure channel costs your model, on your device, over your network, and which one to use."""

__version__ = "0.1.0"
