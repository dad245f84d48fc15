"""tonnage on a real control plane, beside external-provisioner."""
