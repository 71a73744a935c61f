//! Splits a command line, GNU style: `--flag value`, `--flag=value`, flags and positionals in any order, `--` ends flags.
//!
//! Each sub-command has a [`Command`] table; help and completion are made from the same tables.

use std::{ffi::OsString, fmt};

use lexopt::{Arg, Parser};

use crate::config::{Flag, FlagKind, Flags, GLOBAL_FLAGS, Role, parse_int};

/// A sub-command as the command line sees it.
#[derive(Debug)]
pub struct Command {
    /// The word.
    pub name: &'static str,
    /// What follows it, for the usage line.
    pub operands: &'static str,
    /// One line for the list of commands.
    pub about: &'static str,
    /// Its own flags; the global ones are accepted as well.
    pub flags: &'static [Flag],
    /// One-letter forms: letter and name.
    pub shorts: &'static [(char, &'static str)],
    /// Unknown flags are ignored: injection templates of other releases may pass them.
    pub tolerant: bool,
    /// How many positionals it takes, at least and at most.
    pub positionals: (usize, usize),
}

/// What was typed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Typed {
    /// Flags with their values, in order.
    pub flags: Vec<(&'static str, String)>,
    /// The rest.
    pub positionals: Vec<String>,
    /// `--help` or `-h` was among them.
    pub help: bool,
    /// Flags that a tolerant command does not know, without dashes.
    pub unknown: Vec<String>,
}

/// What is wrong with a command line.
#[derive(Debug, PartialEq, Eq)]
pub struct UsageError(pub String);

impl Typed {
    /// The last value given to a flag, else its default.
    pub fn text(&self, flag: &Flag) -> &str {
        let given = self.flags.iter().rev().find(|(name, _)| *name == flag.name);
        given.map_or(flag.default, |(_, value)| value)
    }

    /// Whether a flag was given.
    pub fn has(&self, flag: &Flag) -> bool {
        self.flags.iter().any(|(name, _)| *name == flag.name)
    }

    /// The value of a whole-number flag. Its form was checked when it was taken apart.
    pub fn int(&self, flag: &Flag) -> i64 {
        parse_int(self.text(flag)).unwrap_or_default()
    }

    /// The value of a flag that counts something.
    ///
    /// # Errors
    /// A negative number.
    pub fn count(&self, flag: &Flag) -> Result<u64, UsageError> {
        u64::try_from(self.int(flag)).map_err(|_| UsageError(format!("--{}: must not be negative", flag.name)))
    }
}

impl Command {
    /// Every flag that it accepts, by name.
    pub fn all_flags(&self) -> impl Iterator<Item = &'static Flag> {
        self.flags.iter().chain(GLOBAL_FLAGS)
    }

    /// Takes the words after the command apart.
    ///
    /// # Errors
    /// An unknown flag (unless tolerant), a missing value, the wrong number of positionals.
    pub fn parse(&self, words: impl IntoIterator<Item = OsString>) -> Result<Typed, UsageError> {
        let mut parser = Parser::from_args(words);
        let mut typed = Typed::default();
        loop {
            let mut is_short = false;
            let name = match next(&mut parser)? {
                None => break,
                Some(Word::Positional(text)) => {
                    typed.positionals.push(text);
                    continue;
                }
                Some(Word::Long(name)) => name,
                Some(Word::Short(letter)) => match self.shorts.iter().find(|(short, _)| *short == letter) {
                    Some((_, name)) => {
                        is_short = true;
                        (*name).to_owned()
                    }
                    None if letter == 'h' => "help".to_owned(),
                    None => letter.to_string(),
                },
            };
            match self.all_flags().find(|flag| flag.name == name) {
                // What follows it in the same word are more letters: `-so json`.
                Some(flag) if is_short && flag.kind == FlagKind::Bool => {
                    typed.flags.push((flag.name, "true".to_owned()))
                }
                Some(flag) => typed.flags.push((flag.name, value(&mut parser, flag)?)),
                None if name == "help" => typed.help = true,
                None if self.tolerant => {
                    skip_value(&mut parser);
                    typed.unknown.push(name);
                }
                None => return Err(UsageError(format!("unknown flag: {}", self.misspelt(&name, "")))),
            }
        }
        self.check_positionals(&typed)?;
        Ok(typed)
    }

    fn check_positionals(&self, typed: &Typed) -> Result<(), UsageError> {
        let (least, most) = self.positionals;
        let count = typed.positionals.len();
        if typed.help || (least..=most).contains(&count) {
            return Ok(());
        }
        let wanted = if count < least { format!("at least {least}") } else { format!("at most {most}") };
        Err(UsageError(format!("{} takes {wanted} arguments, got {count}: {}", self.name, self.usage())))
    }

    /// `wait [flags]`.
    pub fn usage(&self) -> String {
        let space = if self.operands.is_empty() { "" } else { " " };
        format!("{}{space}{} [flags]", self.name, self.operands)
    }

    /// An unknown flag as it was typed, what is to be said of it, and the known one that it is like.
    pub fn misspelt(&self, name: &str, said: &str) -> String {
        let dashes = if name.chars().count() == 1 { "-" } else { "--" };
        let near = super::suggest::nearest(name, self.all_flags().map(|flag| flag.name));
        let hint = near.map_or(String::new(), |near| format!("; did you mean --{near}?"));
        format!("{dashes}{name}{said}{hint}")
    }
}

enum Word {
    Long(String),
    Short(char),
    Positional(String),
}

fn next(parser: &mut Parser) -> Result<Option<Word>, UsageError> {
    Ok(match parser.next().map_err(|error| UsageError(error.to_string()))? {
        None => None,
        Some(Arg::Long(name)) => Some(Word::Long(name.to_owned())),
        Some(Arg::Short(letter)) => Some(Word::Short(letter)),
        Some(Arg::Value(text)) => Some(Word::Positional(text.to_string_lossy().into_owned())),
    })
}

/// Whether a flag that stands before the command, without dashes, has its value in the next word: `--vklog 3 proxy`.
pub fn takes_next_word(flag: &str) -> bool {
    GLOBAL_FLAGS.iter().any(|known| known.name == flag && known.kind != FlagKind::Bool)
}

/// Whether a word turns JSON log lines on; asked before the command line is taken apart, which may fail.
pub fn asks_for_json(word: &str) -> bool {
    let mut flags = Flags::default();
    match word.strip_prefix("--log_as_json") {
        Some("") => true,
        Some(value) => {
            let value = value.strip_prefix('=').unwrap_or_default();
            flags.set("log_as_json", value).is_ok() && flags.bool("log_as_json")
        }
        None => false,
    }
}

/// A flag's value, checked for its type. A bool takes one only after `=`.
fn value(parser: &mut Parser, flag: &Flag) -> Result<String, UsageError> {
    let value = match flag.kind {
        FlagKind::Bool => parser.optional_value().unwrap_or_else(|| "true".into()),
        _ => parser.value().map_err(|_| UsageError(format!("flag needs an argument: --{}", flag.name)))?,
    };
    let value = value.to_string_lossy().into_owned();
    flag.check(&value).map_err(UsageError)?;
    Ok(value)
}

/// An unknown flag swallows the next word, as with Istio's parser, unless that is a role: `proxy --oldflag router` is a router.
fn skip_value(parser: &mut Parser) {
    if parser.optional_value().is_some() {
        return;
    }
    if let Some(mut rest) = parser.try_raw_args() {
        rest.next_if(|word| word.to_str().is_none_or(|word| !word.starts_with('-') && word.parse::<Role>().is_err()));
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}
