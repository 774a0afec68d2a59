// Thin wrapper of SQLite: statements with typed arguments, errors as a Status, transactions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

struct sqlite3;
struct sqlite3_stmt;

namespace braid {

// A statement with its arguments, and a cursor over its rows. Must not outlive its database.
class SqlStatement {
 public:
  // Moves to the next row. Returns false after the last one.
  absl::StatusOr<bool> Next();
  // Runs a statement that returns no rows.
  absl::Status Run();
  // Makes the statement ready to run again, with other arguments.
  void Reset();

  // Arguments, numbered from 1. Text is copied.
  void Bind(int index, int64_t value);
  void Bind(int index, double value);  // NaN is stored as NULL
  void Bind(int index, absl::string_view value);
  void BindBlob(int index, absl::string_view bytes);
  template <typename... Arguments>
  void BindAll(const Arguments&... arguments) {
    int index = 0;
    (Bind(++index, arguments), ...);
  }

  // Columns of the current row, numbered from 0.
  bool IsNull(int column) const;
  int64_t Integer(int column) const;
  double Number(int column) const;  // NaN for NULL
  std::string Text(int column) const;

 private:
  friend class SqlDatabase;
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const;
  };
  SqlStatement(sqlite3_stmt* statement, absl::string_view path)
      : statement_(statement), path_(path) {}

  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  absl::string_view path_;
};

// One connection. Thread-compatible.
//
// Errors name the file: DATA_LOSS if it is damaged or is no database, RESOURCE_EXHAUSTED if the
// disk is full, FAILED_PRECONDITION if another process has locked it or it cannot be opened.
class SqlDatabase {
 public:
  // Opens the file, or creates it, in WAL mode and for this process alone.
  static absl::StatusOr<std::unique_ptr<SqlDatabase>> Open(const std::string& path);
  SqlDatabase(const SqlDatabase&) = delete;
  SqlDatabase& operator=(const SqlDatabase&) = delete;
  ~SqlDatabase();

  // Runs statements without arguments, separated by ';'.
  absl::Status Execute(const std::string& sql);
  absl::StatusOr<SqlStatement> Prepare(absl::string_view sql);
  // Prepares a statement and binds its arguments.
  template <typename... Arguments>
  absl::StatusOr<SqlStatement> Query(absl::string_view sql, const Arguments&... arguments) {
    absl::StatusOr<SqlStatement> statement = Prepare(sql);
    if (statement.ok()) {
      statement->BindAll(arguments...);
    }
    return statement;
  }
  // Runs a statement that returns no rows.
  template <typename... Arguments>
  absl::Status Run(absl::string_view sql, const Arguments&... arguments) {
    absl::StatusOr<SqlStatement> statement = Query(sql, arguments...);
    return statement.ok() ? statement->Run() : statement.status();
  }
  // Returns the first column of the only row.
  absl::StatusOr<int64_t> Integer(absl::string_view sql);
  int64_t last_insert_number() const;
  const std::string& path() const { return path_; }

 private:
  SqlDatabase(sqlite3* database, std::string path) : database_(database), path_(std::move(path)) {}

  sqlite3* const database_;
  const std::string path_;
};

// Rolls back unless it was committed.
class SqlTransaction {
 public:
  enum class Sync {
    kProcess,  // survives a crash of the process
    kDisk,     // also a loss of power
  };
  static absl::StatusOr<SqlTransaction> Begin(SqlDatabase* database, Sync sync);
  SqlTransaction(SqlTransaction&& other) noexcept : database_(other.database_) {
    other.database_ = nullptr;
  }
  SqlTransaction& operator=(SqlTransaction&&) = delete;
  ~SqlTransaction();

  absl::Status Commit();

 private:
  explicit SqlTransaction(SqlDatabase* database) : database_(database) {}

  SqlDatabase* database_;  // nullptr: ended
};

// Brings the schema up to date: migration i leads from version i to i + 1, and each one is applied
// in a transaction. FAILED_PRECONDITION if the file has a version that is not known.
absl::Status Migrate(SqlDatabase* database, absl::Span<const char* const> migrations);

}  // namespace braid
