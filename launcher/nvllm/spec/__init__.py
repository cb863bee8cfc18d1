"""Image specs: what people write in `images/<name>.yaml`, loaded and checked.

In: YAML. Out: a frozen `core.spec.ImageSpec`, or every problem at once, each with its line.
"""
