#include "server/jobs/store/sqlite.h"

#include <sqlite3.h>

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"

namespace braid {
namespace {

absl::Status SqlError(sqlite3* database, absl::string_view path) {
  const std::string text = absl::StrCat("'", path, "': ", sqlite3_errmsg(database));
  switch (sqlite3_errcode(database)) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_IOERR:
      return absl::DataLossError(text);
    case SQLITE_FULL:
    case SQLITE_NOMEM:
    case SQLITE_TOOBIG:
      return absl::ResourceExhaustedError(text);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_PERM:
      return absl::FailedPreconditionError(text);
    default:
      return absl::InternalError(text);
  }
}

}  // namespace

void SqlStatement::Finalize::operator()(sqlite3_stmt* statement) const {
  sqlite3_finalize(statement);
}

absl::StatusOr<bool> SqlStatement::Next() {
  switch (sqlite3_step(statement_.get())) {
    case SQLITE_ROW:
      return true;
    case SQLITE_DONE:
      return false;
    default:
      return SqlError(sqlite3_db_handle(statement_.get()), path_);
  }
}

absl::Status SqlStatement::Run() { return Next().status(); }

void SqlStatement::Reset() { sqlite3_reset(statement_.get()); }

void SqlStatement::Bind(int index, int64_t value) {
  sqlite3_bind_int64(statement_.get(), index, value);
}

void SqlStatement::Bind(int index, double value) {
  sqlite3_bind_double(statement_.get(), index, value);
}

void SqlStatement::Bind(int index, absl::string_view value) {
  sqlite3_bind_text64(statement_.get(), index, value.data(), value.size(), SQLITE_TRANSIENT,
                      SQLITE_UTF8);
}

void SqlStatement::BindBlob(int index, absl::string_view bytes) {
  sqlite3_bind_blob64(statement_.get(), index, bytes.data(), bytes.size(), SQLITE_TRANSIENT);
}

bool SqlStatement::IsNull(int column) const {
  return sqlite3_column_type(statement_.get(), column) == SQLITE_NULL;
}

int64_t SqlStatement::Integer(int column) const {
  return sqlite3_column_int64(statement_.get(), column);
}

double SqlStatement::Number(int column) const {
  return IsNull(column) ? std::numeric_limits<double>::quiet_NaN()
                        : sqlite3_column_double(statement_.get(), column);
}

std::string SqlStatement::Text(int column) const {
  const void* data = sqlite3_column_blob(statement_.get(), column);
  const int size = sqlite3_column_bytes(statement_.get(), column);
  return data == nullptr ? std::string() : std::string(static_cast<const char*>(data), size);
}

absl::StatusOr<std::unique_ptr<SqlDatabase>> SqlDatabase::Open(const std::string& path) {
  sqlite3* handle = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &handle,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  auto database = std::unique_ptr<SqlDatabase>(new SqlDatabase(handle, path));
  if (code != SQLITE_OK) {
    return SqlError(handle, path);
  }
  sqlite3_extended_result_codes(handle, 0);
  // Exclusive locking comes first: the log then needs no shared memory. The empty transaction
  // takes the lock.
  BRAID_RETURN_IF_ERROR(
      database->Execute("PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL;"
                        "PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON;"
                        "BEGIN EXCLUSIVE; COMMIT;"));
  return database;
}

SqlDatabase::~SqlDatabase() { sqlite3_close_v2(database_); }

absl::Status SqlDatabase::Execute(const std::string& sql) {
  return sqlite3_exec(database_, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK
             ? absl::OkStatus()
             : SqlError(database_, path_);
}

absl::StatusOr<SqlStatement> SqlDatabase::Prepare(absl::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v2(database_, sql.data(), static_cast<int>(sql.size()), &statement,
                         nullptr) != SQLITE_OK) {
    return SqlError(database_, path_);
  }
  return SqlStatement(statement, path_);
}

absl::StatusOr<int64_t> SqlDatabase::Integer(absl::string_view sql) {
  BRAID_ASSIGN_OR_RETURN(SqlStatement statement, Prepare(sql));
  BRAID_ASSIGN_OR_RETURN(const bool found, statement.Next());
  return found ? absl::StatusOr<int64_t>(statement.Integer(0))
               : absl::InternalError(absl::StrCat("'", path_, "': no row for: ", sql));
}

int64_t SqlDatabase::last_insert_number() const { return sqlite3_last_insert_rowid(database_); }

absl::StatusOr<SqlTransaction> SqlTransaction::Begin(SqlDatabase* database, Sync sync) {
  const char* const mode = sync == Sync::kDisk ? "FULL" : "NORMAL";
  BRAID_RETURN_IF_ERROR(
      database->Execute(absl::StrCat("PRAGMA synchronous = ", mode, "; BEGIN IMMEDIATE")));
  return SqlTransaction(database);
}

SqlTransaction::~SqlTransaction() {
  if (database_ != nullptr) {
    database_->Execute("ROLLBACK").IgnoreError();  // An error may have rolled back already.
  }
}

absl::Status SqlTransaction::Commit() {
  BRAID_RETURN_IF_ERROR(database_->Execute("COMMIT"));
  database_ = nullptr;
  return absl::OkStatus();
}

absl::Status Migrate(SqlDatabase* database, absl::Span<const char* const> migrations) {
  const auto known = static_cast<int64_t>(migrations.size());
  BRAID_ASSIGN_OR_RETURN(int64_t version, database->Integer("PRAGMA user_version"));
  if (version > known) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", database->path(), "': was written by a newer server (schema version ",
                     version, "; this server reads up to ", known, ")"));
  }
  for (; version < known; ++version) {
    BRAID_ASSIGN_OR_RETURN(SqlTransaction transaction,
                           SqlTransaction::Begin(database, SqlTransaction::Sync::kDisk));
    BRAID_RETURN_IF_ERROR(database->Execute(migrations[version]));
    BRAID_RETURN_IF_ERROR(database->Execute(absl::StrCat("PRAGMA user_version = ", version + 1)));
    BRAID_RETURN_IF_ERROR(transaction.Commit());
  }
  return absl::OkStatus();
}

}  // namespace braid
