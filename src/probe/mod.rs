//! One check of an application, over HTTP, TCP, gRPC or by a command.
//!
//! `status` runs the rewritten probes of the kubelet with it, `health` the readiness probe of a VM. What the outcome means is theirs:
//! nothing here counts, repeats or decides.

mod dial;
mod exec;
mod grpc;
mod http;

pub use self::{
    dial::{Source, tcp},
    exec::{ExecError, exec},
    grpc::{GrpcError, grpc},
    http::{Answer, Http, Idle, Tls},
};
