// The search runs in a worker, which browsers do not start from file://. There a frame runs the worker's script.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "<!doctype html><body></body>";
      this.ready = new Promise((resolve) => this.frame.addEventListener("load", () => resolve(this.start(url)), { once: true }));
      document.body.append(this.frame);
    }

    start(url) {
      const scope = this.frame.contentWindow;
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = scope.document.createElement("script");
      script.src = new URL(url, document.baseURI).href;
      return new Promise((resolve) => {
        script.addEventListener("load", () => resolve(scope));
        scope.document.body.append(script);
      });
    }

    postMessage(data) {
      this.ready.then((scope) => scope.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
