"""Vendor files: all that Berth knows of the devices of one vendor, as data.

The folder of this module has one YAML file per vendor. Each field is described here, with its unit. Names of
attributes and capacities without a domain have that of the driver. The files are read once, when the module is
imported: a wrong one ends the process with an error that names the file, the field and the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from extender.api.documents import Positions, one_value
from extender.api.object_meta import is_subdomain
from extender.base.berth_errors import WireError
from extender.policy import faults_of

GPU, NIC, OTHER = "gpu", "nic", "other"  # of `kind`; no code asks for the other kinds
_MAX_FILE = 256 * 1024  # bytes
_Text = Annotated[str, Field(min_length=1, max_length=128)]
_Texts = tuple[_Text, ...]


def _driver_name(name: str) -> str:
    if not is_subdomain(name):
        raise ValueError("must be a DNS subdomain such as gpu.example.com")
    return name


_DriverName = Annotated[_Text, AfterValidator(_driver_name)]
_Count = Annotated[int, Field(strict=True, ge=0, le=64)]
_Rate = Annotated[float, Field(strict=True, gt=0, le=10_000)]
_Gib = Annotated[float, Field(strict=True, gt=0, le=4096)]
_Pcie = Annotated[int, Field(strict=True, ge=1, le=16)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DriverEntry(_Part):
    """What the devices of one DRA driver are, and how it names their facts."""

    kind: Literal["gpu", "nic", "cpu", "channel", "other"] = Field(
        description="what the devices are; gpu stands for every accelerator"
    )
    classes: _Texts = Field((), description="DeviceClasses that the driver installs, besides NAME and *.NAME")
    agent: bool = Field(
        default=False, strict=True, description="Berth's agent reads these GPUs, so a node with them should run one"
    )
    whole: Mapping[_Text, Annotated[_Texts, Field(min_length=1)]] = Field(
        {},
        description="attribute to the values of a whole device; any other value is that of a part or of another form. "
        "A device without the attribute is whole",
    )
    identity: Annotated[_Texts, Field(min_length=1)] = Field(
        ("resource.kubernetes.io/pciBusID",),
        description="attributes that tell two whole devices of a node apart, the best first; a device with none of "
        "them is in no fabric. Berth's agent calls a GPU by the first one",
    )
    parent: _Texts = Field((), description="attributes of a part with the identity of its whole device")
    product: _Texts = Field(("productName", "model"), description="attributes with the product name, the best first")
    memory: _Text = Field("memory", description="the capacity that is the memory of a device")
    numa: _Texts = Field(
        ("numaNode",), description="attributes with the NUMA node, after resource.kubernetes.io/numaNode"
    )
    partitions: Mapping[Annotated[int, Field(ge=1, le=64)], _Text] = Field(
        {},
        description="number of GPUs to the attribute with the number of the partition of that size that has the GPU; "
        "only the GPUs of one partition can be joined",
    )


class Product(_Part):
    """The largest values of one product, and what its driver does not publish."""

    names: Annotated[_Texts, Field(min_length=1)] = Field(description="words of which one is in the product name")
    pcie: _Pcie = Field(description="generation of PCIe")
    links: _Count = Field(0, description="links of one device, all together")
    link: str = Field("", description="the kind of these links: a name of `links`")
    across_nodes: bool = Field(default=False, description="whether these links reach devices of other nodes")
    memory_gib: _Gib | None = Field(None, description="memory of one device in GiB, for drivers that publish none")


class Board(_Part):
    """How the devices of a usual machine are joined. One of switch_links, peer_links and mesh says it."""

    names: Annotated[_Texts, Field(min_length=1)] = Field(description="words of which one is in the product name")
    devices: Annotated[int, Field(strict=True, ge=2, le=16)] = Field(
        description="whole devices of the machine; a machine with fewer has the smallest larger board, except a mesh"
    )
    link: _Text = Field(description="the kind of the links: a name of `links`")
    switch_links: _Count = Field(0, description="links of each device into switches that join all of them")
    peer_links: _Count = Field(0, description="links of each device to each other one, without a switch")
    mesh: tuple[tuple[_Count, ...], ...] = Field(
        (), description="links of each device to each other one, where pairs differ; one row per device"
    )

    @model_validator(mode="after")
    def _is_one_fabric(self) -> Self:
        if sum(map(bool, (self.switch_links, self.peer_links, self.mesh))) != 1:
            raise ValueError("needs exactly one of switch_links, peer_links and mesh")
        size = range(self.devices)
        if self.mesh and [len(row) for row in self.mesh] != [self.devices] * self.devices:
            raise ValueError(f"mesh must have {self.devices} rows of {self.devices} numbers")
        if any(self.mesh[i][j] != self.mesh[j][i] or self.mesh[i][i] for i in size for j in size if self.mesh):
            raise ValueError("mesh must be symmetric, with 0 for a device and itself")
        return self


class SlowLinks(_Part):
    """Links far below the rate of their generation, as the agent reads it."""

    below_mbps: Annotated[int, Field(strict=True, ge=1)] = Field(description="nominal MB/s of one link, one direction")
    gbps: _Rate = Field(description="GB/s that such a link adds to a ring")


class ComputeDomains(_Part):
    """Jobs whose nodes a driver joins: a claim names its domain by `domainID` in its parameters for this driver."""

    driver: _DriverName = Field(description="the driver whose devices are channels of a domain; its pools are nodes")
    node_label: _Text = Field(description="node label with the UID of the only domain that can use the node")


class Vendor(_Part):
    """One file. In `products`, and in `boards` of one size, the first entry with a matching name counts."""

    drivers: Annotated[Mapping[_DriverName, DriverEntry], Field(min_length=1)] = Field(
        description="by name of the DRA driver"
    )
    links: Mapping[_Text, _Rate] = Field(
        {},
        description="kind of link, with its generation or rate as the last word, which users do not see, to the GB/s "
        "in one direction that one link adds to a ring: what the vendor's collective library plans with or "
        "reaches, not the nominal rate",
    )
    slow_links: SlowLinks | None = Field(None, description="exceptions from `links`")
    clique_label: str = Field("", description="node label whose value nodes share that these links join")
    compute_domains: ComputeDomains | None = Field(
        None, description="jobs that disturb each other on nodes with one value of clique_label; in one file at most"
    )
    plugin_resources: Mapping[_Text, str] = Field(
        {},
        description="extended resources by which a device plugin counts whole GPUs, to the node label with the "
        "product; '' without such a label",
    )
    cloud_products: Mapping[_Text, Mapping[_Text, _Text]] = Field(
        {},
        description="node label by which a cloud names the product, too, to its values, each with the driver's name of "
        "that product",
    )
    products: tuple[Product, ...] = ()
    boards: tuple[Board, ...] = ()
    unjoined: _Texts = Field(
        (),
        description="words of the names of cards: on none of the boards, and joined only by a bridge that may be there",
    )

    @model_validator(mode="after")
    def _names_its_links(self) -> Self:
        named = [(f"products.{position}", one.link) for position, one in enumerate(self.products) if one.link]
        named += [(f"boards.{position}", one.link) for position, one in enumerate(self.boards)]
        for where, link in named:
            if link not in self.links:
                raise ValueError(f"{where}.link: {link!r} is not in links ({', '.join(self.links)})")
        if self.compute_domains is not None:
            if self.compute_domains.driver not in self.drivers:
                raise ValueError(f"compute_domains.driver: {self.compute_domains.driver!r} is not in drivers")
            if not self.clique_label:
                raise ValueError("compute_domains needs clique_label")
        for position, product in enumerate(self.products):
            if bool(product.links) != bool(product.link):
                raise ValueError(
                    f"products.{position}: links ({product.links}) and link ({product.link!r}) go together"
                )
        return self

    def product(self, name: str) -> Product | None:
        """The entry of the product with this name."""
        return next((one for one in self.products if _is_named(name, one.names)), None)

    def board(self, name: str, devices: int) -> Board | None:
        """The board of a machine with so many whole devices of this product; None if the file has none.

        A machine can lack devices of its board: one is broken, or is in parts, or belongs to another virtual machine. A
        switch and links to each peer join those that are left. Which ones a mesh still joins is not known.
        """
        if devices < 2 or self.is_unjoined(name):  # noqa: PLR2004 - one has no peer
            return None
        named = [one for one in self.boards if _is_named(name, one.names)]
        fitting = [one for one in named if one.devices == devices or (one.devices > devices and not one.mesh)]
        return min(fitting, key=lambda one: one.devices, default=None)

    def is_unjoined(self, name: str) -> bool:
        """Whether the product with this name is a card that at most a bridge joins."""
        return _is_named(name, self.unjoined)

    def link_gbps(self, product: Product) -> float:
        """The largest bandwidth of a ring over the links of a product, in GB/s."""
        return product.links * self.links[product.link] if product.links else 0.0


def _is_named(name: str, words: Iterable[str]) -> bool:
    """Whether a product has this name. Labels of nodes have '-' or '_' where the names of drivers have spaces."""
    return any(word.replace(" ", by) in name for word in words for by in " -_")


def read_vendor(content: bytes, where: str) -> Vendor:
    """Read a vendor file. `where` names it in errors. Raises WireError that names the file, the field and the value."""
    positions: Positions = {}
    value = one_value(content, where, _MAX_FILE, positions)
    if not isinstance(value, dict):
        raise WireError(where, "a vendor file must be a mapping")
    try:
        return Vendor.model_validate(value)
    except ValidationError as error:
        raise WireError(where, faults_of(error, positions)) from error


def vendors_of(files: Mapping[str, bytes]) -> tuple[Vendor, ...]:
    """The vendors of files, by file name. Raises WireError if one is wrong, or two describe one thing."""
    found = {name: read_vendor(content, name) for name, content in sorted(files.items())}
    owner: dict[str, str] = {}
    for name, vendor in found.items():
        for driver in vendor.drivers:
            if driver in owner:
                raise WireError(name, f"drivers: {driver!r} is in {owner[driver]}, too")
            owner[driver] = name
    first, *more = [name for name, vendor in found.items() if vendor.compute_domains is not None] or [""]
    if more:
        raise WireError(more[0], f"compute_domains: is in {first}, too")
    return tuple(found.values())


_ENTRIES = resources.files("extender.vendors").iterdir()
VENDORS: Final = vendors_of({entry.name: entry.read_bytes() for entry in _ENTRIES if entry.name.endswith(".yaml")})
