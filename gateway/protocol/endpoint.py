"""The cached endpoints, which policies name, too; what each is like stands in ``endpoints/``."""

from policies.endpoint import Endpoint

__all__ = ("Endpoint",)
