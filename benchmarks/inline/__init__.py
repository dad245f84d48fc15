"""Inline drivers: volumes of certificates and of images, their time, memory and copies."""
