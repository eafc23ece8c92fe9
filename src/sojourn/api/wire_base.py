"""What messages between front and engine are made of: arrays of their fields, told apart by name or by place."""

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base: an array that begins with the name of its class."""


class Body(msgspec.Struct, frozen=True, array_like=True):
    """Base of what is inside a message; its place says its type."""
