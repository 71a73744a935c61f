//! A check by a command: no shell, the agent's environment, its whole process group ended at the timeout.

use std::{
    fmt, io,
    os::unix::process::ExitStatusExt,
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use crate::process;

/// Why the command counts as failed.
#[derive(Debug)]
pub enum ExecError {
    /// There is no command, or it cannot be started.
    Start(io::Error),
    /// It ended with another status than 0.
    Status(ExitStatus),
    /// It was killed at the timeout, with its children.
    TimedOut,
}

/// Succeeds when `command` ends with status 0 within `timeout`.
///
/// # Errors
/// When it does not.
pub async fn exec(command: &[String], timeout: Duration) -> Result<(), ExecError> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(ExecError::Start(io::Error::new(io::ErrorKind::InvalidInput, "the command is empty")));
    };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let named = |error: io::Error| io::Error::new(error.kind(), format!("exec {program:?}: {error}"));
    let mut child = process::spawn(&mut command).map_err(|error| ExecError::Start(named(error)))?;
    match tokio::time::timeout(timeout, child.wait()).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(ExecError::Status(status)),
        Ok(Err(error)) => Err(ExecError::Start(error)),
        // Dropping the child kills its process group.
        Err(_) => Err(ExecError::TimedOut),
    }
}

impl fmt::Display for ExecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExecError::Start(error) => error.fmt(f),
            ExecError::Status(status) => match (status.code(), status.signal()) {
                (Some(code), _) => write!(f, "exit status {code}"),
                (None, Some(signal)) => write!(f, "killed by signal {signal}"),
                (None, None) => status.fmt(f),
            },
            ExecError::TimedOut => f.write_str("command timeout exceeded: signal: killed"),
        }
    }
}

impl std::error::Error for ExecError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ExecError::Start(error) => Some(error),
            ExecError::Status(_) | ExecError::TimedOut => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn run(command: &[&str], millis: u64) -> Result<(), String> {
        let command: Vec<String> = command.iter().map(|part| (*part).to_owned()).collect();
        exec(&command, Duration::from_millis(millis)).await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn status_decides() {
        assert_eq!(run(&["true"], 5000).await, Ok(()));
        assert_eq!(run(&["sh", "-c", "exit 7"], 5000).await, Err("exit status 7".to_owned()));
        assert_eq!(run(&[], 5000).await, Err("the command is empty".to_owned()));
        let missing = run(&["/no/such/command"], 5000).await.unwrap_err();
        assert!(missing.starts_with("exec \"/no/such/command\": No such file"), "{missing}");
        assert_eq!(run(&["sleep", "1000"], 20).await, Err("command timeout exceeded: signal: killed".to_owned()));
    }
}
