// node-postgres: what it stores through tenure.enqueue, and what it ends through tenure.complete. See python.py.

const assert = require("node:assert/strict");
const { Client } = require("pg");

const TEXTS = ['{"path":"C:\\\\dir"}', 'say \\"hi\\"', "\\x41", "it's 100% ä€😀\nend"];
const BYTES = Buffer.from([0, 255, 92, 120, 39]);
const DOCUMENT = { path: "C:\\dir", n: 1 };
const NAMED = { dedupe_key: "once", key: "ada", delay: "1 microsecond", max_attempts: 3, kind: "k", reference: "r" };

async function main() {
  const client = new Client();
  await client.connect();
  const one = async (sql, values) => (await client.query(sql, values)).rows[0];
  const enqueue = async (payload, placeholder = "$2") => {
    const { id } = await one(`select tenure.enqueue($1, ${placeholder}) as id`, ["drivers", payload]);
    return one("select payload, encoding from tenure.message where id = $1", [id]);
  };
  await client.query("begin");
  if (process.argv[2] === "enqueue") {
    for (const text of TEXTS) {
      assert.deepEqual(await enqueue(text), { payload: Buffer.from(text), encoding: "text" });
    }
    assert.deepEqual(await enqueue(BYTES, "$2::bytea"), { payload: BYTES, encoding: null });
    const stored = await enqueue(DOCUMENT, "$2::jsonb");
    assert.deepEqual([JSON.parse(stored.payload), stored.encoding], [DOCUMENT, "json"]);
    const places = Object.keys(NAMED).map((name, place) => `${name} => $${place + 3}`);
    const named = `select tenure.enqueue($1, $2, ${places.join(", ")}) as id`;
    const values = ["drivers", "named", ...Object.values(NAMED)];
    const first = await one(named, values);
    const found = "select key, max_attempts, kind, reference, (due_at - created_at)::int as delay from tenure.scheduled where id = $1";
    assert.deepEqual(await one(found, [first.id]), { key: "ada", max_attempts: 3, kind: "k", reference: "r", delay: 1 });
    assert.deepEqual(await one(named, values), first);
  } else {
    const leased = await client.query("select id, attempts from tenure.message where leased_until > 0 order by id");
    assert.equal(leased.rows.length, TEXTS.length + 2);
    for (const { id, attempts } of leased.rows) {
      const complete = () => one("select tenure.complete($1, $2) as done", [id, attempts]);
      assert.deepEqual([await complete(), await complete()], [{ done: true }, { done: false }]);
    }
  }
  await client.query("commit");
  await client.end();
}

main();
