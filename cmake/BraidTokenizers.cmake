# Defines braid::tokenizers, Hugging Face's tokenizers with a C interface. Cargo downloads the crates, whose
# versions Cargo.toml pins, and compiles them to a static library.
set(crate ${PROJECT_SOURCE_DIR}/server/decode/tokenizers)
file(STRINGS ${crate}/Cargo.toml rust_version REGEX "^rust-version = ")
string(REGEX MATCH "[0-9.]+" rust_version "${rust_version}")

function(braid_new_cargo result cargo)
  execute_process(COMMAND ${cargo} --version OUTPUT_VARIABLE version ERROR_QUIET)
  if(NOT version MATCHES "^cargo ([0-9.]+)" OR CMAKE_MATCH_1 VERSION_LESS rust_version)
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

# Ubuntu's packages of newer compilers have folders of their own.
find_program(BRAID_CARGO cargo PATHS /usr/lib/rust-${rust_version}/bin $ENV{HOME}/.cargo/bin
             VALIDATOR braid_new_cargo)
mark_as_advanced(BRAID_CARGO)
if(NOT BRAID_CARGO)
  message(FATAL_ERROR "Cargo ${rust_version} or newer not found: run scripts/setup.sh, or set BRAID_CARGO")
endif()
cmake_path(GET BRAID_CARGO PARENT_PATH cargo_bin)

set(tokenizers_library ${CMAKE_BINARY_DIR}/cargo/release/libbraid_tokenizers.a)
add_custom_command(
  OUTPUT ${tokenizers_library}
  # Cargo takes the first rustc of the PATH.
  COMMAND ${CMAKE_COMMAND} -E env "PATH=${cargo_bin}:$ENV{PATH}" ${BRAID_CARGO} build --release
          --quiet --manifest-path ${crate}/Cargo.toml --target-dir ${CMAKE_BINARY_DIR}/cargo
  COMMAND ${CMAKE_COMMAND} -E touch ${tokenizers_library}
  DEPENDS ${crate}/Cargo.toml ${crate}/src/lib.rs
  COMMENT "Building the tokenizers with Cargo"
  VERBATIM)
add_custom_target(braid_tokenizers_crate DEPENDS ${tokenizers_library})

add_library(braid_tokenizers STATIC IMPORTED)
add_library(braid::tokenizers ALIAS braid_tokenizers)
set_target_properties(braid_tokenizers PROPERTIES IMPORTED_LOCATION ${tokenizers_library})
# Programs that export their symbols to plugins do not export those of the Rust code.
target_link_options(braid_tokenizers INTERFACE -Wl,--exclude-libs,libbraid_tokenizers.a)
target_link_libraries(braid_tokenizers INTERFACE Threads::Threads ${CMAKE_DL_LIBS} m)
add_dependencies(braid_tokenizers braid_tokenizers_crate)
