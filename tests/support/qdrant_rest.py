"""Qdrant's REST interface on its embedded mode, as a process that can be frozen, killed and filled.

    qdrant_rest.py DIRECTORY PORT

The client speaks to it as to a server; what it stores survives in DIRECTORY. `PUT /fault` with
`{"writes": 507}` makes writes fail with that status, as a full disk does; `{"key": "k"}` wants the
header `api-key`.
"""

import asyncio
import os
import sys
import warnings

from aiohttp import web
from pydantic import TypeAdapter
from qdrant_client import QdrantClient, models

warnings.filterwarnings("ignore", "Payload indexes have no effect")
FAULT = web.AppKey("fault", dict)
CLIENT = web.AppKey("client", QdrantClient)
SELECTOR = TypeAdapter(models.PointsSelector)


def answered(result: object) -> web.Response:
    return web.json_response({"result": result, "status": "ok", "time": 0.0})


def failed(status: int, why: str) -> web.Response:
    return web.json_response({"status": {"error": why}, "time": 0.0}, status=status)


def plain(value: object) -> object:
    return value.model_dump(mode="json")


@web.middleware
async def as_told(request: web.Request, handler) -> web.StreamResponse:
    fault = request.app[FAULT]
    if request.path == "/fault":
        return await handler(request)
    if "key" in fault and request.headers.get("api-key") != fault["key"]:
        return failed(401, "Must provide an API key or an Authorization bearer token")
    writes = request.method == "PUT" or request.path.endswith("/delete")
    if writes and "writes" in fault:
        return failed(fault["writes"], "No space left on device")
    if "all" in fault:
        return failed(fault["all"], "Service internal error")
    name = request.match_info["name"]
    exists = request.app[CLIENT].collection_exists(name)
    if not exists and request.method != "PUT" and not request.path.endswith("/exists"):
        return failed(404, f"Not found: Collection `{name}` doesn't exist!")
    return await handler(request)


async def exists(request: web.Request) -> web.Response:
    there = request.app[CLIENT].collection_exists(request.match_info["name"])
    return answered({"exists": there})


async def describe(request: web.Request) -> web.Response:
    return answered(plain(request.app[CLIENT].get_collection(request.match_info["name"])))


async def create(request: web.Request) -> web.Response:
    wanted = models.CreateCollection.model_validate_json(await request.read())
    name = request.match_info["name"]
    if request.app[CLIENT].collection_exists(name):
        return failed(409, f"Wrong input: Collection `{name}` already exists!")
    return answered(request.app[CLIENT].create_collection(name, vectors_config=wanted.vectors))


async def drop(request: web.Request) -> web.Response:
    return answered(request.app[CLIENT].delete_collection(request.match_info["name"]))


async def index(request: web.Request) -> web.Response:
    wanted = models.CreateFieldIndex.model_validate_json(await request.read())
    made = request.app[CLIENT].create_payload_index(
        request.match_info["name"], wanted.field_name, wanted.field_schema
    )
    return answered(plain(made))


async def upsert(request: web.Request) -> web.Response:
    wanted = models.PointsList.model_validate_json(await request.read())
    assert request.query["wait"] == "true"
    done = request.app[CLIENT].upsert(request.match_info["name"], wanted.points)
    return answered(plain(done))


async def delete(request: web.Request) -> web.Response:
    wanted = SELECTOR.validate_json(await request.read())
    assert request.query["wait"] == "true"
    return answered(plain(request.app[CLIENT].delete(request.match_info["name"], wanted)))


async def count(request: web.Request) -> web.Response:
    wanted = models.CountRequest.model_validate_json(await request.read())
    name = request.match_info["name"]
    return answered(plain(request.app[CLIENT].count(name, wanted.filter, exact=True)))


async def query(request: web.Request) -> web.Response:
    wanted = models.QueryRequest.model_validate_json(await request.read())
    found = request.app[CLIENT].query_points(
        request.match_info["name"],
        query=wanted.query,
        query_filter=wanted.filter,
        limit=wanted.limit,
        with_payload=wanted.with_payload,
    )
    return answered(plain(found))


async def scroll(request: web.Request) -> web.Response:
    wanted = models.ScrollRequest.model_validate_json(await request.read())
    points, _ = request.app[CLIENT].scroll(
        request.match_info["name"],
        limit=wanted.limit,
        order_by=wanted.order_by,
        with_payload=wanted.with_payload,
    )
    return answered({"points": [plain(point) for point in points], "next_page_offset": None})


async def set_fault(request: web.Request) -> web.Response:
    request.app[FAULT].clear()
    request.app[FAULT].update(await request.json())
    return web.Response()


def application(client: QdrantClient) -> web.Application:
    app = web.Application(middlewares=[as_told])
    app[FAULT], app[CLIENT] = {}, client
    collection = "/collections/{name}"
    for method, path, handler in (
        ("PUT", "/fault", set_fault),
        ("GET", f"{collection}/exists", exists),
        ("GET", collection, describe),
        ("PUT", collection, create),
        ("DELETE", collection, drop),
        ("PUT", f"{collection}/index", index),
        ("PUT", f"{collection}/points", upsert),
        ("POST", f"{collection}/points/delete", delete),
        ("POST", f"{collection}/points/count", count),
        ("POST", f"{collection}/points/query", query),
        ("POST", f"{collection}/points/scroll", scroll),
    ):
        app.router.add_route(method, path, handler)
    return app


async def serve(directory: str, port: int) -> None:
    runner = web.AppRunner(application(QdrantClient(path=directory)), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    # Nothing is tidied up: every write is on disk already.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
