"""A provider of nodes for Ray's autoscaler, which notices that a machine was taken away, as a cloud does."""

from __future__ import annotations

from typing import Any

from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider


class SpotProvider(FakeMultiNodeProvider):  # type: ignore[misc]
    """Ray's provider of fake nodes, each a raylet on the loopback interface; that one forgets no node."""

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[Any]:
        """Return the ids of the nodes whose raylet runs."""
        with self.lock:
            for name, entry in list(self._nodes.items()):
                if "node" in entry and entry["node"].all_processes["raylet"][0].process.poll() is not None:
                    del self._nodes[name]
        return super().non_terminated_nodes(tag_filters)  # type: ignore[no-any-return]
