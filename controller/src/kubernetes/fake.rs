//! An API server for tests, with answers given by the test.

use axum::Router;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// A client of a server with these pages.
pub(crate) async fn serve(pages: Router) -> kube::Client {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, pages).await });
    let mut config = kube::Config::new(Uri::try_from(format!("http://{address}")).unwrap());
    config.read_timeout = Some(std::time::Duration::from_secs(1));
    config.reset_reader_on_write = true;
    kube::Client::try_from(config).unwrap()
}

/// An error as the API server words it.
pub(crate) fn refusal(code: u16, message: &str) -> Response {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message,
        "reason": "Test",
    });
    (StatusCode::from_u16(code).unwrap(), axum::Json(body)).into_response()
}

/// An object.
pub(crate) fn object(value: Value) -> Response {
    axum::Json(value).into_response()
}
