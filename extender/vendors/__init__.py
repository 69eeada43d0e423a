"""What Berth knows of vendors and their DRA drivers: one YAML file each, and the functions that read devices by it."""

from extender.vendors.drivers import (
    DRIVERS,
    amount_of_memory,
    driver_of,
    driver_of_class,
    first_attribute,
    gpu_identities,
    is_part,
    memory_bytes,
    numa_attributes,
    parent_of,
    product_of,
    whole_identity,
)
from extender.vendors.vendor_files import GPU, NIC, OTHER, VENDORS, Product, Vendor, vendors_of

__all__ = [
    "DRIVERS",
    "GPU",
    "NIC",
    "OTHER",
    "VENDORS",
    "Product",
    "Vendor",
    "amount_of_memory",
    "driver_of",
    "driver_of_class",
    "first_attribute",
    "gpu_identities",
    "is_part",
    "memory_bytes",
    "numa_attributes",
    "parent_of",
    "product_of",
    "vendors_of",
    "whole_identity",
]
