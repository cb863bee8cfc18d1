"""What runs inside the image, or under the image's interpreter: standard library only."""
