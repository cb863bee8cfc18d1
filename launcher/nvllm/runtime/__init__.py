"""What runs by itself, inside the image or under any Python: standard library only."""
