"""What runs by itself inside an image: standard library only."""
