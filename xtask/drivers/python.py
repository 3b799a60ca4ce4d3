"""psycopg2, psycopg and asyncpg: what each stores through tenure.enqueue, and what it ends through tenure.complete.

`python.py <driver> enqueue` stores every payload and compares; `python.py <driver> complete` ends all leased messages.
The server is that of PGHOST, PGPORT, PGUSER and PGDATABASE.
"""

import asyncio
import json
import sys
from datetime import timedelta

TEXTS = ['{"path":"C:\\\\dir"}', 'say \\"hi\\"', "\\x41", "it's 100% \u00e4\u20ac\U0001f600\nend"]
BYTES = bytes([0, 255, 92, 120, 39])
DOCUMENT = {"path": "C:\\dir", "n": 1}
NAMES = ["dedupe_key", "key", "delay", "max_attempts", "kind", "reference"]
VALUES = ["named", "once", "ada", timedelta(microseconds=1), 3, "k", "r"]
NAMED = "select key, max_attempts, kind, reference, due_at - created_at from tenure.scheduled where id = {}"
STORED = "select payload, encoding from tenure.message where id = {}"
LEASED = "select id, attempts from tenure.message where leased_until > 0 order by id"


def same(stored, expected, encoding):
    payload = bytes(stored[0])
    assert payload == expected, f"stored {payload!r} and not {expected!r}"
    assert stored[1] == encoding, f"the encoding is {stored[1]!r} and not {encoding!r}"


def blocking(connect, jsonb):
    """One test for both psycopgs: they differ in how a document is passed."""
    with connect("") as connection, connection.cursor() as cursor:

        def one(sql, *values):
            cursor.execute(sql, values)
            return cursor.fetchone()

        def enqueue(payload, placeholder="%s"):
            (id,) = one(f"select tenure.enqueue(%s, {placeholder})", "drivers", payload)
            return one(STORED.format("%s"), id)

        if sys.argv[2] == "enqueue":
            for text in TEXTS:
                same(enqueue(text), text.encode(), "text")
            same(enqueue(BYTES), BYTES, None)
            stored = enqueue(*jsonb)
            same(stored, bytes(stored[0]), "json")
            assert json.loads(bytes(stored[0])) == DOCUMENT
            named = "select tenure.enqueue(%s, %s, " + ", ".join(f"{name} => %s" for name in NAMES) + ")"
            (first,) = one(named, "drivers", *VALUES)
            assert one(NAMED.format("%s"), first) == ("ada", 3, "k", "r", 1)
            assert one(named, "drivers", *VALUES) == (first,)
            assert one("select tenure.enqueue(%s, %s, dedupe_key => %s)", "drivers", "named", "once") == (first,)
        else:
            cursor.execute(LEASED)
            leased = cursor.fetchall()
            assert len(leased) == len(TEXTS) + 2, leased
            for id, attempt in leased:
                assert one("select tenure.complete(%s, %s)", id, attempt) == (True,)
                assert one("select tenure.complete(%s, %s)", id, attempt) == (False,)


async def asynchronous():
    import asyncpg

    connection = await asyncpg.connect()

    async def enqueue(payload, placeholder="$2"):
        id = await connection.fetchval(f"select tenure.enqueue($1, {placeholder})", "drivers", payload)
        return await connection.fetchrow(STORED.format("$1"), id)

    async with connection.transaction():
        if sys.argv[2] == "enqueue":
            for text in TEXTS:
                same(await enqueue(text), text.encode(), "text")
            same(await enqueue(BYTES, "$2::bytea"), BYTES, None)
            stored = await enqueue(json.dumps(DOCUMENT), "$2::jsonb")
            same(stored, stored[0], "json")
            assert json.loads(stored[0]) == DOCUMENT
            places = ", ".join(f"{name} => ${place}" for place, name in enumerate(NAMES, 3))
            named = f"select tenure.enqueue($1, $2, {places})"
            first = await connection.fetchval(named, "drivers", *VALUES)
            stored = await connection.fetchrow(NAMED.format("$1"), first)
            assert tuple(stored) == ("ada", 3, "k", "r", 1), stored
            assert first == await connection.fetchval(named, "drivers", *VALUES)
        else:
            leased = await connection.fetch(LEASED)
            assert len(leased) == len(TEXTS) + 2, leased
            for id, attempt in leased:
                assert await connection.fetchval("select tenure.complete($1, $2)", id, attempt) is True
                assert await connection.fetchval("select tenure.complete($1, $2)", id, attempt) is False
    await connection.close()


if sys.argv[1] == "psycopg2":
    import psycopg2
    from psycopg2.extras import Json

    blocking(psycopg2.connect, (Json(DOCUMENT), "%s::jsonb"))
elif sys.argv[1] == "psycopg":
    import psycopg
    from psycopg.types.json import Jsonb

    blocking(psycopg.connect, (Jsonb(DOCUMENT),))
else:
    asyncio.run(asynchronous())
