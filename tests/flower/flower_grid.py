"""Flower's own apps and messages in this process: a grid whose nodes are calls of a ClientApp."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

SERVER = 1
Change = Callable[[Message, Message], Message | None]


def carried(message: Message) -> Message:
    """A message after it was taken apart and put together as on its way through a SuperLink."""
    contents = {id: each.deflate() for id, each in get_all_nested_objects(message).items()}
    found = inflate_object_from_contents(message.object_id, contents)
    assert isinstance(found, Message)
    found.metadata.__dict__["_message_id"] = message.object_id
    return found


class InProcess(Grid):
    """Every node is the same ClientApp with another node-config."""

    def __init__(
        self,
        app: ClientApp,
        nodes: int,
        states: Path,
        change: Change = lambda message, answer: answer,
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, SERVER, 3
        self.app = app
        self.change = change
        self.contexts = {
            10 + index: Context(
                run_id=7,
                node_id=10 + index,
                node_config={
                    "partition-id": index,
                    "num-partitions": nodes,
                    "state-dir": str(states),
                },
                state=RecordDict(),
                run_config={},
            )
            for index in range(nodes)
        }
        self.replies: dict[str, Message] = {}
        self.started = "2026-01-01"

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: Any = None) -> Any:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=id, last_activated_at=self.started) for id in self.contexts]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            names.append(message.object_id)
            answer = self.answered(carried(message))
            if answer is not None:
                self.replies[message.object_id] = carried(answer)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(id) for id in message_ids if id in self.replies]

    def answered(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        TaskIdentity.node_id = node
        try:
            with ThreadPoolExecutor(1) as thread:
                work = thread.submit(self.app, message, self.contexts[node])
                return self.change(message, work.result())
        except Exception as error:  # as a SuperNode tells it
            return Message(
                Error(code=2, reason=f"{type(error).__name__}: {error}"), reply_to=message
            )
        finally:
            TaskIdentity.node_id = SERVER
