"""What Berth knows of vendors and their DRA drivers: one YAML file for each vendor, and the functions that use it.

Labels of nodes have a face of their own, `node_labels`.
"""

from extender.vendors.drivers import (
    CLIQUE_LABEL,
    CLIQUE_LABELS,
    COMPUTE_DOMAIN_DRIVER,
    COMPUTE_DOMAIN_LABEL,
    DRIVERS,
    amount_of_memory,
    compute_domain,
    driver_of,
    driver_of_class,
    first_attribute,
    gpu_identities,
    is_partition,
    memory_bytes,
    numa_attributes,
    parent_of,
    product_of,
    whole_identity,
)
from extender.vendors.vendor_files import GPU, NIC, OTHER, VENDORS, Product, Vendor, vendors_of

__all__ = [
    "CLIQUE_LABEL",
    "CLIQUE_LABELS",
    "COMPUTE_DOMAIN_DRIVER",
    "COMPUTE_DOMAIN_LABEL",
    "DRIVERS",
    "GPU",
    "NIC",
    "OTHER",
    "VENDORS",
    "Product",
    "Vendor",
    "amount_of_memory",
    "compute_domain",
    "driver_of",
    "driver_of_class",
    "first_attribute",
    "gpu_identities",
    "is_partition",
    "memory_bytes",
    "numa_attributes",
    "parent_of",
    "product_of",
    "vendors_of",
    "whole_identity",
]
