// JDBC: what it stores through tenure.enqueue, and what it ends through tenure.complete. See python.py.

import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;

class Jdbc {
    static final List<String> TEXTS =
        List.of("{\"path\":\"C:\\\\dir\"}", "say \\\"hi\\\"", "\\x41", "it's 100% \u00e4\u20ac\ud83d\ude00\nend");
    static final byte[] BYTES = {0, (byte) 255, 92, 120, 39};
    // A parameter that is bound with setString is a varchar, which PostgreSQL turns into no interval by itself.
    static final String NAMED =
        "?, dedupe_key => ?, key => ?, delay => ?::interval, max_attempts => ?, kind => ?, reference => ?";

    interface Bind {
        void to(PreparedStatement statement) throws SQLException;
    }

    static Connection connection;

    public static void main(String[] arguments) throws SQLException {
        var env = System.getenv();
        var url = "jdbc:postgresql://%s:%s/%s?user=%s".formatted(
            env.get("PGHOST"), env.get("PGPORT"), env.get("PGDATABASE"), env.get("PGUSER"));
        connection = DriverManager.getConnection(url);
        connection.setAutoCommit(false);
        if (arguments[0].equals("enqueue")) enqueueAll(); else completeAll();
        connection.commit();
        connection.close();
    }

    static void enqueueAll() throws SQLException {
        for (var text : TEXTS) {
            stored(enqueue("?", s -> s.setString(2, text)), text.getBytes(StandardCharsets.UTF_8), "text");
        }
        stored(enqueue("?", s -> s.setBytes(2, BYTES)), BYTES, null);
        var document = "{\"n\": 1, \"path\": \"C:\\\\dir\"}";
        stored(enqueue("?::jsonb", s -> s.setString(2, document)), document.getBytes(StandardCharsets.UTF_8), "json");
        Bind named = s -> {
            s.setString(2, "named");
            s.setString(3, "once");
            s.setString(4, "ada");
            s.setString(5, "1 microsecond");
            s.setInt(6, 3);
            s.setString(7, "k");
            s.setString(8, "r");
        };
        var first = enqueue(NAMED, named);
        var found = "select concat_ws(' ', key, max_attempts, kind, reference, due_at - created_at) from tenure.scheduled where id = " + first;
        try (var rows = connection.createStatement().executeQuery(found)) {
            rows.next();
            check(rows.getString(1).equals("ada 3 k r 1"), "stored " + rows.getString(1));
        }
        check(first == enqueue(NAMED, named), "a dedupe key stored a second message");
        refused("?, delay => ?", s -> { s.setString(2, "x"); s.setString(3, "1 hour"); });
    }

    static long enqueue(String rest, Bind bind) throws SQLException {
        try (var statement = connection.prepareStatement("select tenure.enqueue(?, " + rest + ")")) {
            statement.setString(1, "drivers");
            bind.to(statement);
            var rows = statement.executeQuery();
            rows.next();
            return rows.getLong(1);
        }
    }

    /// What the guide warns of: the function is not found.
    static void refused(String rest, Bind bind) throws SQLException {
        var before = connection.setSavepoint();
        try {
            enqueue(rest, bind);
        } catch (SQLException error) {
            check(error.getSQLState().equals("42883"), error.toString());
            connection.rollback(before);
            return;
        }
        check(false, "a string was taken as an interval: the guide says that it is not");
    }

    static void stored(long id, byte[] payload, String encoding) throws SQLException {
        var sql = "select payload, encoding from tenure.message where id = ?";
        try (var statement = connection.prepareStatement(sql)) {
            statement.setLong(1, id);
            ResultSet row = statement.executeQuery();
            row.next();
            check(Arrays.equals(row.getBytes(1), payload), "stored " + Arrays.toString(row.getBytes(1)));
            check(Objects.equals(row.getString(2), encoding), "the encoding is " + row.getString(2));
        }
    }

    static void completeAll() throws SQLException {
        var leased = new ArrayList<long[]>();
        try (var statement = connection.createStatement()) {
            var rows = statement.executeQuery("select id, attempts from tenure.message where leased_until > 0 order by id");
            while (rows.next()) leased.add(new long[] {rows.getLong(1), rows.getLong(2)});
        }
        check(leased.size() == TEXTS.size() + 2, leased.size() + " messages are leased");
        for (var message : leased) {
            check(complete(message), "a held lease was refused");
            check(!complete(message), "a message was completed twice");
        }
    }

    static boolean complete(long[] message) throws SQLException {
        try (var statement = connection.prepareStatement("select tenure.complete(?, ?)")) {
            statement.setLong(1, message[0]);
            // An int, as most programs would pass an attempt.
            statement.setInt(2, (int) message[1]);
            var rows = statement.executeQuery();
            rows.next();
            return rows.getBoolean(1);
        }
    }

    static void check(boolean holds, String otherwise) {
        if (!holds) throw new AssertionError(otherwise);
    }
}
