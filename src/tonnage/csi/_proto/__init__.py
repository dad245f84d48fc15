"""Generated from csi.proto and registration.proto by scripts/gen_proto.py. Do not edit the .py and .pyi files."""
