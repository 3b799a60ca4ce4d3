// node-postgres: what it stores through tenure.enqueue, and what it ends through tenure.complete. See python.py.

const assert = require("node:assert/strict");
const { Client } = require("pg");

const TEXTS = ['{"path":"C:\\\\dir"}', 'say \\"hi\\"', "\\x41", "it's 100% ä€😀\nend"];
const BYTES = Buffer.from([0, 255, 92, 120, 39]);
const DOCUMENT = { path: "C:\\dir", n: 1 };
const NAMED = "key => 'ada', delay => '1 microsecond', max_attempts => 3, kind => 'k', reference => 'r'";

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
    const named = `select tenure.enqueue($1, $2, dedupe_key => $3, ${NAMED}) as id`;
    const first = await one(named, ["drivers", "named", "once"]);
    assert.deepEqual(await one(named, ["drivers", "named", "once"]), first);
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
