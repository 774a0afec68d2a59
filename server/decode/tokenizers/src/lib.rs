//! C interface of the `tokenizers` crate. braid_tokenizers.h describes the functions.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
use std::path::Path;
use std::sync::Once;
use std::{ptr, slice, str};

use tokenizers::{PaddingDirection, PostProcessor, Result, TruncationParams};

/// A tokenizer that is not changed after loading.
pub struct Tokenizer {
    tokenizer: tokenizers::Tokenizer,
    special_tokens: bool,
}

#[repr(C)]
pub struct Options {
    path: *const u8,
    path_size: usize,
    truncate_to: usize,
    special_tokens: bool,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Properties {
    added_tokens: usize,
    pad_token: i64,
    pad_left: bool,
}

#[repr(C)]
pub struct Tokens {
    data: *mut u32,
    size: usize,
}

#[repr(C)]
pub struct Text {
    data: *mut u8,
    size: usize,
}

fn leak<T>(values: Vec<T>) -> (*mut T, usize) {
    let values = Box::leak(values.into_boxed_slice());
    (values.as_mut_ptr(), values.len())
}

/// # Safety
/// `data` and `size` are those of leak(), which must be freed only once.
unsafe fn free<T>(data: *mut T, size: usize) {
    drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(data, size)) });
}

fn panic_message(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let message = text.or(panic.downcast_ref::<&str>().copied());
    format!(
        "the tokenizer failed: {}",
        message.unwrap_or("unknown error")
    )
}

/// Runs `work`. Returns its error or panic, which must not reach C++, in `error`.
///
/// # Safety
/// `error` can be written to.
unsafe fn run<T>(error: *mut Text, work: impl FnOnce() -> Result<T>) -> Option<T> {
    // A panic is reported as an error, not on the standard error as well.
    static QUIET: Once = Once::new();
    QUIET.call_once(|| set_hook(Box::new(|_| {})));
    let message = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => return Some(value),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => panic_message(panic),
    };
    let (data, size) = leak(message.into_bytes());
    unsafe { error.write(Text { data, size }) };
    None
}

/// # Safety
/// `data` points to `size` bytes, or `size` is 0.
unsafe fn utf8<'a>(data: *const u8, size: usize) -> Result<&'a str> {
    if size == 0 {
        return Ok("");
    }
    let bytes = unsafe { slice::from_raw_parts(data, size) };
    str::from_utf8(bytes).map_err(|error| format!("byte {}: not UTF-8", error.valid_up_to()).into())
}

fn pad_token(tokenizer: &tokenizers::Tokenizer) -> i64 {
    let named = || {
        ["[PAD]", "<pad>"]
            .iter()
            .find_map(|token| tokenizer.token_to_id(token))
    };
    let token = tokenizer
        .get_padding()
        .map(|padding| padding.pad_id)
        .or_else(named);
    token.map_or(-1, i64::from)
}

fn load(path: &Path, options: &Options) -> Result<(Tokenizer, Properties)> {
    let mut tokenizer = tokenizers::Tokenizer::from_file(path)?;
    let pads_left =
        |padding: &tokenizers::PaddingParams| matches!(padding.direction, PaddingDirection::Left);
    let properties = Properties {
        added_tokens: match tokenizer.get_post_processor() {
            Some(processor) if options.special_tokens => processor.added_tokens(false),
            _ => 0,
        },
        pad_token: pad_token(&tokenizer),
        pad_left: tokenizer.get_padding().is_some_and(pads_left),
    };
    let truncation = TruncationParams {
        max_length: options.truncate_to.max(properties.added_tokens),
        direction: tokenizer
            .get_truncation()
            .map(|file| file.direction)
            .unwrap_or_default(),
        ..Default::default()
    };
    tokenizer.with_padding(None);
    tokenizer.with_truncation((options.truncate_to > 0).then_some(truncation))?;
    Ok((
        Tokenizer {
            tokenizer,
            special_tokens: options.special_tokens,
        },
        properties,
    ))
}

/// # Safety
/// The pointers of `options`, `properties` and `error` are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tokenizer_load(
    options: *const Options,
    properties: *mut Properties,
    error: *mut Text,
) -> *mut Tokenizer {
    let work = || {
        let options = unsafe { &*options };
        let path = unsafe { utf8(options.path, options.path_size) }?;
        load(Path::new(path), options)
    };
    let Some((tokenizer, read)) = (unsafe { run(error, work) }) else {
        return ptr::null_mut();
    };
    unsafe { properties.write(read) };
    Box::into_raw(Box::new(tokenizer))
}

/// # Safety
/// `tokenizer` was loaded and not freed. `text` has `size` bytes. `tokens` and `error` are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tokenizer_encode(
    tokenizer: *const Tokenizer,
    text: *const u8,
    size: usize,
    tokens: *mut Tokens,
    error: *mut Text,
) -> bool {
    let work = || {
        let tokenizer = unsafe { &*tokenizer };
        let text = unsafe { utf8(text, size) }?;
        let encoding = tokenizer
            .tokenizer
            .encode_fast(text, tokenizer.special_tokens)?;
        Ok(encoding.get_ids().to_vec())
    };
    let Some(ids) = (unsafe { run(error, work) }) else {
        return false;
    };
    let (data, size) = leak(ids);
    unsafe { tokens.write(Tokens { data, size }) };
    true
}

/// # Safety
/// `tokenizer` was loaded and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tokenizer_free(tokenizer: *mut Tokenizer) {
    drop(unsafe { Box::from_raw(tokenizer) });
}

/// # Safety
/// `tokens` is the result of a function here and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tokens_free(tokens: Tokens) {
    unsafe { free(tokens.data, tokens.size) };
}

/// # Safety
/// `text` is the result of a function here and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_text_free(text: Text) {
    unsafe { free(text.data, text.size) };
}
