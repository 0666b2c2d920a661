"""The registry: every section, in the order in which a file is applied.

Adding a kind of object is one module here and one line below.
"""

from controlplane.declarative.section import Section
from controlplane.declarative.sections.adapters import ADAPTERS
from controlplane.declarative.sections.catalog import MODELS, VERSIONS
from controlplane.declarative.sections.fleet import NODES, POOLS, REPLICAS, SHADOWS, SPLITS
from controlplane.declarative.sections.members import MEMBERSHIPS
from controlplane.declarative.sections.reliability import (
    MAINTENANCE,
    SILENCES,
    SLOS,
    WEBHOOKS,
)
from controlplane.declarative.sections.scaling import SCALING
from controlplane.declarative.sections.tenants import API_KEYS, TENANTS

SECTIONS: tuple[Section, ...] = (
    MODELS,
    VERSIONS,
    NODES,
    POOLS,
    SPLITS,
    SHADOWS,
    REPLICAS,
    SCALING,
    TENANTS,
    MEMBERSHIPS,
    API_KEYS,
    ADAPTERS,
    SLOS,
    MAINTENANCE,
    SILENCES,
    WEBHOOKS,
)
BY_NAME = {section.name: section for section in SECTIONS}
