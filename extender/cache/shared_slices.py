"""The slices without a node name, found by the labels of a node: a node must not read those of all other nodes."""

from __future__ import annotations

from extender.model import Node, NodeSelection, Slice

_NAME = "metadata.name"
_Label = tuple[str, str]  # key and value; the key is _NAME for the name of a node


class SharedSlices:
    """Slices without a node name, by name."""

    def __init__(self) -> None:
        self._everywhere: dict[str, Slice] = {}  # slices that may matter for any node
        self._by_label: dict[_Label, dict[str, Slice]] = {}  # slices that matter only for nodes with one of some labels

    def put(self, new: Slice) -> None:
        """Add a slice. Its name must be unknown."""
        for table in self._tables(new):
            table[new.name] = new

    def remove(self, old: Slice) -> None:
        """Remove a slice."""
        for table in self._tables(old):
            del table[old.name]
        for label in _labels_of_slice(old) or ():
            if not self._by_label[label]:
                del self._by_label[label]

    def _tables(self, slice_: Slice) -> list[dict[str, Slice]]:
        labels = _labels_of_slice(slice_)
        return [self._everywhere] if labels is None else [self._by_label.setdefault(label, {}) for label in labels]

    def of(self, node: Node) -> list[Slice]:
        """The slices that may matter for a node, sorted by name."""
        found = dict(self._everywhere)
        for label in ((_NAME, node.name), *node.labels.items()) if self._by_label else ():
            found |= self._by_label.get(label, {})
        return [found[name] for name in sorted(found)]


def _labels_of_slice(slice_: Slice) -> set[_Label] | None:
    """Labels of which each node that a slice matters for has one; None if it may matter for any node."""
    if slice_.counter_sets:
        return None
    if slice_.selection.is_set or not slice_.per_device:
        return _labels(slice_.selection)
    found = set[_Label]()
    for device in slice_.devices:
        labels = _labels(device.selection)
        if labels is None:
            return None
        found |= labels
    return found


def _labels(selection: NodeSelection) -> set[_Label] | None:
    """The same for a node selection."""
    if selection.node_name:
        return {(_NAME, selection.node_name)}
    if selection.all_nodes:
        return None
    found = set[_Label]()
    for term in selection.selector.terms if selection.selector is not None else ():
        named = next((one for one in term.fields if (one.key, one.operator) == (_NAME, "In")), None)
        wanted = named or next((one for one in term.expressions if one.operator == "In" and one.key != _NAME), None)
        if wanted is not None:
            found.update((wanted.key, value) for value in wanted.values)
        elif term.fields or term.expressions:  # an empty term matches no node
            return None
    return found
