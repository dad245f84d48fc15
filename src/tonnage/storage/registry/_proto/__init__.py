"""Generated from content.proto and images.proto by scripts/gen_proto.py. Do not edit the .py and .pyi files."""
