"""A gateway in one process, without embeddings. Arguments: port, settings as JSON."""

import sys

import uvloop
from aiohttp import web

from gateway.app import create_app
from gateway.settings import Settings


def main() -> None:
    """Serve until killed."""
    uvloop.install()
    settings = Settings.model_validate_json(sys.argv[2])
    web.run_app(
        create_app(settings, semantic_socket=None),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        access_log=None,
        print=None,
    )


if __name__ == "__main__":
    main()
